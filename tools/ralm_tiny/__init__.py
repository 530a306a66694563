"""How the built-in language model was made; see README.md."""

"""Real servers of language models, to test `ralm` against; README.md says how they answer."""

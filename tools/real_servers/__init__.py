"""Real servers of language models on this machine, to test `ralm` against; README.md says how they answer."""

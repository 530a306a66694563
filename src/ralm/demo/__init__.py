"""The demo and its corpus, which need no download."""

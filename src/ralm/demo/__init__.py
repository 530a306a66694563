"""The demo and its corpus, which come with the package and run without any download."""

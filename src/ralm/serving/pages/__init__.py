"""The page at `/` of a server, and what it may choose from."""

"""Readers of files: one module for each family of formats. Each reads a stream and knows nothing of folders."""

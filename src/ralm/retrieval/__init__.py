"""Queries in, hits out: text analysis, BM25, the index folder, random passages, the official file of retrieved
passages."""

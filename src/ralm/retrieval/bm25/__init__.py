"""BM25 as Lucene computes it, over arrays that are mapped, not loaded.

formula.py   the scores: idf, lengths as Lucene stores them, the fixed-point weights
build.py     passages in, arrays out, in bounded memory
arrays.py    the arrays on disk and their names
search.py    queries in, hits out
"""

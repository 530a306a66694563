"""BM25 as Lucene computes it, over memory-mapped arrays.

formula.py         idf, impacts and stored lengths; options
arrays.py          the arrays on disk: names, checks, and the codes of postings
build.py           texts in, arrays out, in bounded memory; the arrays of an older index and of new passages as one
words.py           texts in, term ids out
writing.py         sorted runs of postings, the code table, and the files of the arrays

search.py          queries in, hits out, by the faster of two ways
stream.py            a stream computes each query from the one before
lookup.py            a lookup sums rare terms and looks common ones up
collection.py        an index as it is searched, the layout of its common terms, queries and masks
kernels.py         pieces of kernels: how they are compiled, fixed-point scores, the heap of the best
instructions.py    vector instructions of kernels
"""

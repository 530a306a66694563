"""BM25 as Lucene computes it, over memory-mapped arrays.

formula.py         idf, impacts and stored lengths; options; weights of query terms
arrays.py          the arrays on disk: names, checks, and the codes of postings
build.py           texts in, term ids and arrays out, in bounded memory and several processes
words.py           texts in, term ids out
merging.py         the arrays of an older index and of new passages as one
writing.py         sorted runs of postings, the code table, and the files of the arrays

search.py          queries in, hits out, by the faster of two ways
batch.py             queries, and the passages that must not be hits
stream.py            a stream computes each query from the one before
stream_kernel.py     the kernel of streams
lookup.py            a lookup sums rare terms and looks common ones up
collection.py        an index as it is searched, and the layout of its common terms
kernels.py         pieces of kernels: how they are compiled, fixed-point scores, the heap of the best
instructions.py    vector instructions of kernels
"""

"""BM25 as Lucene computes it, over arrays that are mapped, not loaded.

formula.py        the scores: idf, impacts, lengths as Lucene stores them
points.py         the scores as fixed-point integers
arrays.py         the arrays on disk and their names
codes.py          the code of a posting: its frequency and its passage's length in a byte
compiled.py       how kernels are compiled

build.py          passages in, arrays out, in bounded memory (options.py)
  term_ids.py       texts to term ids, in this process and in others
  runs.py           postings that wait on disk, and how they are merged

search.py         queries in, hits out, by the best of three ways
  scan.py           every posting of a query's terms is read
  stream.py         each query is worked out from the one before
    sweep.py          its kernel, with vectors.py for what numba cannot be brought to do
    common_terms.py   the layout of the commonest terms
  online.py         streams for queries that come one call at a time
  collecting.py     what streams share, made once
    beside.py         the same made by a thread beside the queries
  parallel.py       streams on several cores
best.py           the best few of many scored passages
forbidden.py      passages that must not be found
"""

"""BM25 as Lucene computes it, over memory-mapped arrays.

formula.py        the scores: idf, impacts, lengths as Lucene stores them
points.py         the scores as fixed-point integers
arrays.py         the arrays on disk and their names
codes.py          the code of a posting: its frequency and its passage's length in one byte
compiled.py       how kernels are compiled

segments.py       runs of passages with arrays of their own, and what was removed from them
build.py          passages in, arrays out, in bounded memory (options.py)
  term_ids.py       turns texts into term ids, in this process and in worker processes
  runs.py           sorted postings on disk, and how they are merged
  writing.py        the arrays on disk
merging.py        several segments in, the arrays of one out

search.py         queries in, hits out, by the fastest of three ways
  weighting.py      weights of query terms, which may be learned
  lexicon.py        the terms that queries asked for, as numbers
  scan.py           reads every posting of a query's terms
  stream.py         computes each query from the one before
    stream_kernel.py  its kernel
      vectors.py         vector instructions that numba cannot generate
    common_terms.py   the layout of the commonest terms
  online.py         streams for queries that come one call at a time
  collecting.py     prepares the data that streams share
    beside.py         prepares it in a background thread
  parallel.py       streams on several cores
best.py           the best few of many scored passages
forbidden.py      passages that must not be found
"""

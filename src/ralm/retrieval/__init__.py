"""From queries to hits: building, changing, opening and searching an index.

build.py             writes an index of passages, or of an older index and new passages
update.py  sync.py   add and remove documents; make an index what its sources are now
vectors.py           adds and removes sets of vectors
index.py             opens an index
layout.py            describes the files of an index
retriever.py         opens a retriever by its options
bm25/  dense/        the two ways to search; hybrid.py combines them, random.py is the control
analysis/            turns texts into index terms
filters.py           says which passages may be found; allowed.py and columns.py find these
distinct.py          leaves out hits that repeat one; expansion.py adds neighbours; marks.py finds the words of a query
summary.py           says what an index holds
retrieval_file.py    reads and writes the official file of retrieved passages
"""

"""From queries to hits: building, changing, opening and searching an index.

build.py             writes an index of passages, or of an older index and new passages
update.py  sync.py   add and remove documents, add vectors; make an index what its sources are now
index.py             opens an index, checks it, and says what it holds
layout.py            describes the files of an index
retriever.py         opens a retriever by its options, and reads hits with their neighbours
bm25/  dense/        the two ways to search; hybrid.py combines them, random.py is the control
analysis/            turns texts into index terms, and finds the words of a query
allowed.py           says which passages may be found, and leaves out hits that repeat one; filters.py reads `--where`
remote.py            asks a search service
retrieval_file.py    reads and writes the official file of retrieved passages
"""

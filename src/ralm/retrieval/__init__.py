"""From queries to hits: building, changing, opening and searching an index.

build.py             builds an index
update.py            adds and removes documents and sets of vectors
writer.py            writes a changed index and merges segments
index.py             opens an index
layout.py            describes the segments and sets of vectors of an index on disk
retriever.py         opens a retriever by its options
bm25/  dense/        the two ways to search; hybrid.py combines them, random.py is the control
analysis/            turns texts into index terms
retrieval_file.py    reads and writes the official file of retrieved passages
"""

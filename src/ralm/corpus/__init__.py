"""From files to numbered passages.

sources.py           reads the documents of files, folders, URLs and Hugging Face datasets
folder.py            finds the files of a source
files.py             opens, unpacks and decodes files
formats/             one module a format; `formats/__init__.py` registers them
documents.py         makes documents of records: fields, metadata, what is skipped
splitting.py         splits documents into passages
structure.py         splits them at headings, paragraphs, list items, rows and sentences
decontamination.py   removes passages that overlap with evaluation texts
store.py             stores passages on disk
file_table.py        lists the files that an index was made of
"""

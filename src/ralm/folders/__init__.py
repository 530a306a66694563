"""Folders and files that ralm writes and reads: an index, a run.

outputs.py        writes an output atomically, and decides what may be replaced
  changes.py        adds and removes files of a folder in place
  work.py           work folders: what a process keeps beside an output until it is complete
  exchange.py       exchanges two names in one step
manifest.py       describes a folder and its files, and checks that they are unchanged
"""

"""Folders and files that ralm writes and reads: an index, a run.

outputs.py        how one comes to its place, whole or not at all, and what may be replaced
  changes.py        how files come and go in a folder that stays in its place
  work.py           what a process keeps beside an output while that is not complete
  exchange.py       two names exchanged in one step
manifest.py       what a folder is and holds, and whether it is as it was written
"""

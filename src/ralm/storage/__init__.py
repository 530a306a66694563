"""Files and folders that ralm writes and reads.

work.py       synced files, file locks, and work folders: what a process keeps beside an output until it is complete
outputs.py    writes an output folder or file atomically, and decides what may be replaced
manifest.py   describes a folder and its files, and checks that they are unchanged
store.py      values under keys in one file, for caches and resumed runs
remote.py     files behind URLs, read from a copy on this machine
"""

"""Long jobs on a Ray cluster of many machines; the only package that knows Ray, except for `keeping` and `work`.

cluster.py     connects to a cluster, and checks that its machines can do the job
tasks.py       runs tasks on it, a bounded number at a time
  work.py        what is to be done: again, in halves, or not at all (without Ray)
  keeping.py     folders that are made once, whoever dies meanwhile (without Ray)
indexing.py    builds an index: parts of the corpus, joined into shards
searching.py   searches an index whose shards are on several machines
loading.py     the message for an installation without Ray
"""

"""Long jobs on a Ray cluster of many machines; the only package that knows Ray, except for `keeping` and `work`.

cluster.py     connects to a cluster, and checks that its machines can do the job
tasks.py       runs tasks on it, a bounded number at a time
  work.py        what is to be done: again, in halves, or not at all (without Ray)
  keeping.py     folders made once, on a shared disk or in an object store, whoever dies meanwhile (without Ray)
indexing.py    builds an index: parts of the corpus, joined into shards
searching.py   searches an index whose shards are on several machines
machines.py    actors that hold what takes long to load, one for each machine or GPU, and tasks for them
models.py      a language model whose copies on the machines share the scoring
  answering.py   questions that they answer
encoding.py    passages that are encoded on the machines
loading.py     the message for an installation without Ray
"""

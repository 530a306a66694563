"""Continuous batching: many threads use one model, which reads what they ask for together.

`model.py` is the model that threads see, `batcher.py` the thread that reads, `lines.py` what it reads next,
`options.py` how much at a time.
"""

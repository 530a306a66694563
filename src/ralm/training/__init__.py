"""Learning from a frozen language model: signals are measured once, then a small model is trained on the table.

signals.py        the table on disk: how likely each candidate passage makes the continuation of each example
examples.py       samples examples from training text; finds and scores their candidates
losses.py         the losses of both papers: In-Context RALM Eq. 9, and LSR of REPLUG
trainer.py        a training in its work folder, by the trainers of sentence-transformers
reranker.py       the predictive reranker
retriever.py      the query encoder alone or both encoders
encoders.py       losses of encoders; encodes the passages again during a training
gains.py          what rerankers and encoders gain on held-out documents, and what choosing among candidates can gain
"""

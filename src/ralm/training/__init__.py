"""Learning from a frozen language model: signals are measured once, then a small model is trained on the table.

signals.py        the table on disk: how likely each candidate passage makes the continuation of each example
signal_writer.py  writes it in parts, and resumes
examples.py       samples examples from training text
candidates.py     finds and scores candidates, also of examples that are scored during a training
losses.py         the losses of both papers: In-Context RALM Eq. 9, and LSR of REPLUG
trainer.py        losses of numbered examples, and the trainers of sentence-transformers that lower them
run.py            a training in its work folder: begun, resumed and written
reranker.py       the predictive reranker; cross_encoder.py has its loss
retriever.py      the query encoder alone or both encoders; encoders.py has their losses
refresh.py        encodes the passages again during a training
gains.py          what rerankers and encoders gain on held-out documents, and what choosing among candidates can gain
"""

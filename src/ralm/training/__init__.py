"""Learning from a frozen language model: measured once (signals), then a small loop over the table.

signals.py          the table on disk: for each example, how likely each candidate passage makes the continuation
reranker.py         the predictive reranker: a cross-encoder that learns which passage helps
  cross_encoder.py  its loss on examples of signals
retriever.py        a retriever: its query encoder alone, or the encoders of queries and passages
  query_encoder.py  the loss of a query encoder on examples of signals
  both_encoders.py  the loss of both, with candidates of the moment
  measured.py       what a language model makes of these candidates
  refresher.py      the process that encodes the passages again
  versions.py       the vectors that it makes, on disk
losses.py           the losses of both papers, of scores alone
harness.py          training a small model in steps, whatever its loss
  options.py        how it is trained
  checkpoints.py    what a killed training resumes from
  plot.py           the plot of its losses
"""

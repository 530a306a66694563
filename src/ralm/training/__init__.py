"""Learning from a frozen language model: measured once (signals), then a small loop over the table.

signals.py        the table on disk: for each example, how likely each candidate passage makes the continuation
reranker.py       the predictive reranker: a cross-encoder that learns which passage helps
  cross_encoder.py its loss on examples of signals
losses.py         the losses of both papers, of scores alone
harness.py        training a small model in steps, whatever its loss
  options.py      how it is trained
  checkpoints.py  what a killed training resumes from
  plot.py         the plot of its losses
losses.py         the losses of both papers
reranker.py       training the predictive reranker
  cross_encoder.py  its student
retriever.py      training a retriever: its query encoder alone, or both encoders
  retriever_options.py  options
  query_encoder.py  the query encoder as a student of signals
  both_encoders.py  both encoders as a student, with candidates of the moment
  measured.py       what a language model makes of these candidates
  refresher.py      the process that encodes the passages again
  versions.py       the vectors that it makes, on disk
"""

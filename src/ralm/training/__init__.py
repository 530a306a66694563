"""Learning from a frozen language model: measured once (signals), then a small loop over the table.

Measuring
signals.py        the table on disk: for each example, how likely each candidate passage makes the continuation
  signal_options.py options: which examples, which candidates
  examples.py       samples examples from training text
  measuring.py      candidates without those that give the answer away; how likely each makes the continuation
  making.py         the folder: parts that several processes measure, resuming
  worth.py          what signals are worth, before anything is trained
  sampled.py        examples that are scored while a retriever is trained

Training
losses.py         the losses of both papers, of scores alone
harness.py        training a small model in steps, whatever its loss
  options.py        how it is trained
  checkpoints.py    what a killed training resumes from
  plot.py           the plot of its losses
reranker.py       training the predictive reranker
  cross_encoder.py  its student
  rank_prior.py     how much the retriever's rank counts before it is trained
retriever.py      training a retriever: its query encoder alone, or both encoders
  query_encoder.py  the query encoder as a student of signals
  both_encoders.py  both encoders as a student, with candidates of the moment
  measured.py       what a language model makes of these candidates
  refresher.py      the process that encodes the passages again
  versions.py       the vectors that it makes, on disk
bm25.py           training weights of query terms, and k1 and b, for BM25
"""

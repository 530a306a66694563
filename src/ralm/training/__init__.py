"""Learning from a frozen language model: measured once (signals), then a small loop over the table.

signals.py        the table on disk: for each example, how likely each candidate passage makes the continuation
harness.py        training a small model in steps, whatever its loss
  options.py      how it is trained
  checkpoints.py  what a killed training resumes from
  plot.py         the plot of its losses
"""

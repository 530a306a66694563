"""Learning from a frozen language model: measured once (signals), then a small loop over the table.

signals.py        the table on disk: for each example, how likely each candidate passage makes the continuation
"""

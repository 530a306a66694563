"""Evaluation of texts and of probabilities.

perplexity.py    evaluates a text: token and word perplexity, bits per byte
sweep.py         the same for several values of one option
bootstrap.py     intervals of means over documents
calibration.py   confidence against accuracy
"""

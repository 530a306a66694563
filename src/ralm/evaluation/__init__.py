"""Evaluation of texts and of retrieval.

report.py        where every token of a text came from, as data and as a page
perplexity.py    evaluates a text: token and word perplexity, bits per byte
passages_read.py what a text was read with: how many tokens, and how much of it is copied
intervals.py     figures over units, with their intervals
comparison.py    the figures of several runs side by side
retrieval.py     retrieval against relevance judgements
"""

from typing import Final

SHOWN_TOKENS: Final = 4000
"""The number of tokens that a page shows without a number asked for."""
RETRIEVAL_MEASURES: Final = "nDCG@10, AP, R@10, R@100, RR"
"""The measures of retrieval without others asked for: nDCG, mean average precision, recall and mean reciprocal rank."""

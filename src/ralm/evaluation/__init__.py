"""Evaluation of texts and of retrieval: perplexities, intervals, judged hits, and the page of a text."""

from typing import Final

SHOWN_TOKENS: Final = 4000
"""The number of tokens that a page shows without a number asked for."""
RETRIEVAL_MEASURES: Final = "nDCG@10, AP, R@10, R@100, RR"
"""The measures of retrieval without others asked for: nDCG, mean average precision, recall and mean reciprocal rank."""

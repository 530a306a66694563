"""The distribution over the next token of several texts, each read whole every time.

For models without a reusable cache of keys and values. It is slow, and correct for every model that can score.

Works on token ids; knows nothing of documents. Shapes: B texts, N tokens, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch

from ralm.lm.local.continuation import (
    batches,
    check_texts,
    enough_memory,
    padded,
    tokens_a_batch_of,
    wanted_tokens,
)
from ralm.lm.local.engine import lengths_read_apart
from ralm.lm.local.head import ChosenLogits
from ralm.records import FloatArray, IntArray, NextTokens


class ReadAnew:
    """Texts of at most `max_length` tokens, read in batches of `tokens_a_batch` tokens, padding included."""

    def __init__(self, logits: ChosenLogits, max_length: int, tokens_a_batch: int | None = None) -> None:
        self._logits = logits
        self._max_length = max_length
        by_length = bool(lengths_read_apart(logits.model.config))
        self._tokens = 1 if by_length else tokens_a_batch or tokens_a_batch_of(logits)

    @torch.inference_mode()
    def next_tokens(self, texts: Sequence[IntArray], wanted: IntArray | None = None) -> NextTokens:
        """Natural log-probabilities (float32) of every token, or of the `wanted` ones, after each text (int64, not
        empty).

        Raises ModelError if a text is empty or longer than `max_length`, a wanted token is not in the vocabulary, the
        device runs out of memory, or the model returns NaN.
        """
        check_texts(self._logits.name, texts, self._max_length)
        found: list[FloatArray] = [np.zeros(0, dtype=np.float32)] * len(texts)
        with enough_memory(self._logits, texts):
            for batch in batches(range(len(texts)), texts, self._tokens):
                for row, log_probs_V in zip(batch, self._read([texts[row] for row in batch]), strict=True):
                    found[row] = log_probs_V
        return wanted_tokens(self._logits, np.stack(found), wanted)

    def _read(self, texts: Sequence[IntArray]) -> FloatArray:
        last_B = torch.tensor([len(text) - 1 for text in texts])
        logits_BV = self._logits(padded(texts), torch.arange(len(texts)), last_B)
        log_probs_BV = logits_BV.float().log_softmax(-1)
        self._logits.check_numbers(log_probs_BV)
        return log_probs_BV.cpu().numpy()

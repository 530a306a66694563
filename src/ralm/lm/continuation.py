"""Going on from a prompt: the key-value cache of what was read, and the distribution over the next token.

Shapes: V vocabulary.
"""

from typing import Any

import torch

from ralm.errors import ModelError
from ralm.lm.head import ChosenLogits
from ralm.records import FloatArray, IntArray


class CachedContinuation:
    """A text that a model is in the middle of. What was read once is not read again.

    Raises ModelError where the text grows beyond `max_length` tokens, or is empty to begin with.
    """

    def __init__(self, logits: ChosenLogits, tokens: IntArray, max_length: int) -> None:
        if len(tokens) == 0:
            raise ModelError(f"{logits.name} has nothing to go on from: give it a prompt of at least one token.")
        self._logits = logits
        self._max_length = max_length
        self._length = 0
        self._cache: Any = None
        self._next_V: FloatArray
        self.append(tokens)

    @property
    def next_log_probs_V(self) -> FloatArray:
        """Natural log-probabilities (float32) of each possible next token."""
        return self._next_V

    @torch.inference_mode()
    def append(self, tokens: IntArray) -> None:
        """Read these tokens (int64) too; none changes nothing."""
        if len(tokens) == 0:
            return
        length = self._length + len(tokens)
        if length > self._max_length:
            raise ModelError(f"{self._logits.name} reads at most {self._max_length} tokens at once, not {length}.")
        first, last = torch.tensor([0]), torch.tensor([len(tokens) - 1])
        logits_1V, output = self._logits(
            torch.from_numpy(tokens)[None], first, last, past_key_values=self._cache, use_cache=True
        )
        next_V = logits_1V[0].float().log_softmax(-1)
        self._logits.check_numbers(next_V)
        self._cache, self._length = output.past_key_values, length
        self._next_V = next_V.cpu().numpy()

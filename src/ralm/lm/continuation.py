"""Going on from a prompt: the key-value cache of what was read, and the distribution over the next token.

Shapes: V vocabulary.
"""

import torch
from transformers import PreTrainedModel

from ralm.records import FloatArray, IntArray


class CachedContinuation:
    """A text that a model is in the middle of. What was read once is not read again."""

    def __init__(self, model: PreTrainedModel, tokens: IntArray) -> None:
        self._model = model
        self._cache = None
        self._next: FloatArray
        self.append(tokens)

    @property
    def next_log_probs_V(self) -> FloatArray:
        """Natural log-probabilities (float32) of each possible next token."""
        return self._next

    @torch.inference_mode()
    def append(self, tokens: IntArray) -> None:
        """Read these tokens (int64) too; none changes nothing."""
        if len(tokens) == 0:
            return
        output = self._model(
            input_ids=torch.from_numpy(tokens)[None].to(self._model.device),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._cache = output.past_key_values
        self._next = output.logits[0, -1].float().log_softmax(-1).cpu().numpy()

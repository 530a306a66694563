"""Predicts the next token of texts that grow, from the state that the model itself returns.

For recurrent models (Mamba, RWKV), hybrids of recurrent and attention layers, models that count positions by the
columns of their cache, and models that read all tokens differently beyond a length (LongRoPE). Such a state cannot be
rewound, padded or cut into blocks, and every family has a form of its own. So each text has a state of its own: a new
text is read whole, and a text that grew by one token costs one token.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch

from ralm.lm.local.decoder import LocalDecoder
from ralm.lm.local.engine import TargetLogits, to_device
from ralm.records import IntArray


class StateDecoder(LocalDecoder):
    """Texts with the model's state after each."""

    def __init__(self, logits: TargetLogits, max_length: int, tokens_per_batch: int | None = None) -> None:
        super().__init__(logits, max_length, tokens_per_batch)
        self._states: dict[bytes, dict[str, Any]] = {}

    def _read(self, texts: Sequence[IntArray]) -> torch.Tensor:
        distinct = {text.tobytes(): text for text in texts}
        before, self._states = self._states, {}  # until a text is read: a model may change a state before it fails
        beginnings = [text[:-1].tobytes() for text in distinct.values()]
        logits = dict[bytes, torch.Tensor]()
        for number, (key, text) in enumerate(distinct.items()):
            state = {} if self._crosses_threshold(text) else before.get(beginnings[number], {})
            if beginnings[number] in beginnings[number + 1 :]:
                state = deepcopy(state)  # another text continues it, too
            logits[key], self._states[key] = self._continue(text, state)
        return torch.stack([logits[text.tobytes()] for text in texts])

    def _crosses_threshold(self, text: IntArray) -> bool:
        return any(len(text) == threshold + 1 for threshold in self._thresholds)

    def _continue(self, text: IntArray, state: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        """Read a text whole, or its last token after a state; return the logits (V) and the state after it."""
        positions = {}
        unread = text[-1:] if state else text
        if state and self._logits.takes_positions:
            positions["position_ids"] = to_device(torch.tensor([[len(text) - 1]]), self._logits.device)
        input_1N, last_1 = torch.from_numpy(unread)[None], torch.tensor([len(unread) - 1])
        logits_1V, after = self._logits.continue_state(input_1N, torch.tensor([0]), last_1, state, **positions)
        return logits_1V[0], after

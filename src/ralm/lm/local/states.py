"""Predicts the next token of texts that grow, from the state that the model itself returns: recurrent models (Mamba,
RWKV), hybrids of recurrent and attention layers, and models that count positions by the columns of their cache.

Such a state cannot be rewound, and padding would change it. So a new text is read whole, in a batch of texts of its
length; a text that grew by one token then costs one token. States that differ in nothing but the values of their rows
share a batch: all states of a recurrent model, and those of texts of equal lengths if the model keeps something of
every token. Rows are copied when the texts of a batch change, and when two texts continue one.

Shapes: B texts, N tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
import torch

from ralm.lm.local.continuation import LocalDecoder, batches
from ralm.lm.local.engine import TargetLogits, to_device
from ralm.records import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class _Batch:
    """Texts, as bytes, and the state that the model returned after them, a row for each."""

    texts: list[bytes]
    state: dict[str, Any]


class StateDecoder(LocalDecoder):
    """Texts with the model's state after each; several new ones of one length are read in one batch."""

    together: ClassVar = True
    """Whether texts share batches."""

    def __init__(self, logits: TargetLogits, max_length: int, tokens_per_batch: int | None = None) -> None:
        super().__init__(logits, max_length, tokens_per_batch)
        self._held: list[_Batch] = []

    def _read(self, texts: Sequence[IntArray]) -> FloatArray:
        unread = {text.tobytes(): text for text in texts}
        held, self._held = self._held, []  # until everything is read: a model may change a state before it fails
        grown = [part for batch in held for part in _grown(batch, unread, self.together)]
        known = {key for batch in grown for key in batch.texts}
        found: dict[bytes, FloatArray] = {}
        due = [(batch, [unread[key] for key in batch.texts]) for batch in (_joined(grown) if self.together else grown)]
        new = self._new_batches([text for key, text in unread.items() if key not in known])
        due += [(_Batch([text.tobytes() for text in some], {}), some) for some in new]
        self._held = [self._continue(batch, some, found) for batch, some in due]
        return np.stack([found[text.tobytes()] for text in texts])

    def _new_batches(self, texts: Sequence[IntArray]) -> Iterator[list[IntArray]]:
        for _, group in groupby(sorted(texts, key=len), key=len):
            same = list(group)
            for rows in batches(range(len(same)), same, self._tokens if self.together else 1):
                yield [same[row] for row in rows]

    def _continue(self, batch: _Batch, texts: Sequence[IntArray], found: dict[bytes, FloatArray]) -> _Batch:
        """Read the texts of a batch whole, or their last tokens after a state; adds what follows them to `found`."""
        positions = {}
        if batch.state:
            if self._logits.takes_positions:
                lengths_B1 = torch.tensor([[len(text) - 1] for text in texts])
                positions["position_ids"] = to_device(lengths_B1, self._logits.device)
            texts = [text[-1:] for text in texts]
        row_B = torch.arange(len(texts))
        input_BN, last_B = torch.from_numpy(np.stack(texts)), torch.full_like(row_B, len(texts[0]) - 1)
        logits_BV, state = self._logits.continue_state(input_BN, row_B, last_B, batch.state, **positions)
        found |= zip(batch.texts, self._distributions(logits_BV), strict=True)
        return _Batch(batch.texts, state)


class SeparateStateDecoder(StateDecoder):
    """As `StateDecoder`, one text at a time, for models that mix the rows of a batch (RWKV in transformers)."""

    together = False


def _grown(batch: _Batch, texts: Mapping[bytes, IntArray], together: bool) -> list[_Batch]:
    """The states that `texts` continue by one token, in the order of their rows: in one batch or in one each."""
    rows = {key: row for row, key in enumerate(batch.texts)}
    kept = [(rows[before], key) for key, text in texts.items() if (before := text[:-1].tobytes()) in rows]
    kept.sort(key=lambda one: one[0])
    if [row for row, _ in kept] == list(range(len(rows))):
        return [_Batch([key for _, key in kept], batch.state)]
    parts = ([kept] if kept else []) if together else [[one] for one in kept]
    return [_selected(batch, [row for row, _ in part], [key for _, key in part]) for part in parts]


def _selected(batch: _Batch, rows: list[int], texts: list[bytes]) -> _Batch:
    return _Batch(texts, _changed([batch], lambda tensors: tensors[0][rows]))


def _joined(grown: Sequence[_Batch]) -> list[_Batch]:
    """The batches, those together whose states differ in the values of their rows alone."""
    if len(grown) < 2:
        return [*grown]
    alike: dict[tuple[Any, ...], list[_Batch]] = {}
    for batch in grown:
        alike.setdefault(_form(batch), []).append(batch)
    return [
        _Batch([key for batch in some for key in batch.texts], _changed(some, torch.cat)) if some[1:] else some[0]
        for some in alike.values()
    ]


def _form(batch: _Batch) -> tuple[Any, ...]:
    """All that a state holds but the values of its rows."""
    form: list[Any] = []
    for value in _values(batch.state, set()):
        if not isinstance(value, torch.Tensor):
            form.append(value if isinstance(value, _SIMPLE) else type(value))
        elif _has_rows(value, batch):
            form.append((value.dtype, value.device, value.shape[1:]))
        else:
            form.append((value.shape, value.flatten().tolist() if value.numel() == 1 else None))
    return tuple(map(str, form))


def _changed(some: Sequence[_Batch], change: Callable[[list[torch.Tensor]], torch.Tensor]) -> dict[str, Any]:
    """A copy of the first state in which tensors with rows are `change` of those of all states."""
    tensors = [[one for one in _values(batch.state, set()) if isinstance(one, torch.Tensor)] for batch in some]
    memo = {
        id(every[0]): change([*every]) if _has_rows(every[0], some[0]) else every[0].clone()
        for every in zip(*tensors, strict=True)
    }
    return deepcopy(some[0].state, memo)


def _has_rows(tensor: torch.Tensor, batch: _Batch) -> bool:
    return tensor.ndim > 0 and tensor.shape[0] == len(batch.texts)


_SIMPLE = (bool, int, float, str, type(None))


def _values(state: Any, seen: set[int]) -> Iterator[Any]:
    """The tensors and other values in a state, whatever lists, dictionaries and objects hold them, each once."""
    if isinstance(state, (*_SIMPLE, type)):
        yield state
        return
    if id(state) in seen:
        return
    seen.add(id(state))
    if isinstance(state, dict):
        state = [*state.values()]
    elif not isinstance(state, list | tuple):
        if isinstance(state, torch.Tensor) or not hasattr(state, "__dict__"):
            yield state
            return
        state = [*vars(state).values()]
    for value in state:
        yield from _values(value, seen)

"""The last layer of a model, computed only where it is read.

The last layer needs keys and values of every position. But what attention and the feed-forward network then give to a
position is read by the logits there, and by nothing else. So these products are computed at wanted positions only: of
12 equal layers this saves up to 6%.

Which products these are is tried, since no list of model families stays correct: from the output of the layer's first
part on, which is attention in most models, all products may be zero everywhere else, and the logits at wanted positions
stay the same bit for bit. The products before are not tried: a few tokens would not show that a model chooses the keys
that it attends to, if it attends to all in a short text.

Knows modules and tensors; knows nothing of texts. Shapes: B sequences, N tokens, P wanted positions, V vocabulary.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import torch
from torch.nn import Linear
from torch.utils.hooks import RemovableHandle
from transformers.pytorch_utils import Conv1D

from ralm.lm.local.head import ChosenLogits
from ralm.lm.local.probe import probe_texts
from ralm.lm.local.wanted import Wanted, wanted_now

_LENGTH: Final = 8
"""Tokens of a text of the trial; a model that cannot read as many is left as it is."""
_POSITIONS: Final = (7, 5)
"""The position that is wanted of each text."""
_IN_LAYER: Final = re.compile(r"(?P<layer>.*?\.\d+)\.(?P<part>[^.]+)")
"""The name of a module in a layer: that of the layer, and that of a part of it, such as its attention."""


@torch.inference_mode()
def skip_unread(logits: ChosenLogits, max_length: int) -> None:
    """Have a model compute its last layer only where it is read, as far as that changes nothing."""
    if max_length < _LENGTH:
        return
    wanted = Wanted((2, _LENGTH), torch.arange(2), torch.tensor(_POSITIONS))
    calls: list[_Call] = []

    def note(name: str, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if found := _IN_LAYER.match(name):
            calls.append(_Call(found["layer"], found["part"], module, inputs[0].shape[:2] == wanted.shape))

    def zero_elsewhere(_: torch.nn.Module, __: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        return wanted.spread(wanted.of(output))

    named = [(name, module) for name, module in logits.model.named_modules() if type(module) in (Linear, Conv1D)]
    plain_PV = _read(logits, wanted, [module.register_forward_pre_hook(partial(note, name)) for name, module in named])
    unread = _from_first_output(calls)
    zeros_PV = _read(logits, wanted, [module.register_forward_hook(zero_elsewhere) for module in unread])
    if torch.equal(zeros_PV, plain_PV):
        for module in unread:
            module.register_forward_pre_hook(_pick)
            module.register_forward_hook(_spread)


class _Call(NamedTuple):
    """A product that a model computes: its layer, its part of that layer, and whether it is over all positions."""

    layer: str
    part: str
    module: torch.nn.Module
    whole: bool


def _from_first_output(calls: Sequence[_Call]) -> list[torch.nn.Module]:
    """The products of the last layer from the output of its first part on; not those that the model computes several
    times, or not over all positions."""
    in_layer = [call for call in calls if call.layer == calls[-1].layer]
    output = max((place for place, call in enumerate(in_layer) if call.part == in_layer[0].part), default=0)
    times = Counter(call.module for call in calls)
    return [call.module for call in in_layer[output:] if call.whole and times[call.module] == 1]


def _read(logits: ChosenLogits, wanted: Wanted, hooks: Sequence[RemovableHandle]) -> torch.Tensor:
    """The wanted logits (P, V) of two texts, with hooks that are removed afterwards."""
    texts_BN = torch.from_numpy(np.stack(probe_texts(logits.model, [_LENGTH, _LENGTH], seed=0)))
    try:
        return logits(texts_BN, wanted.row_P, wanted.position_P)
    finally:
        for hook in hooks:
            hook.remove()


def _pick(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor] | None:
    """Take the input of a product at wanted positions, if they are few."""
    wanted = wanted_now()
    if wanted is None or not wanted.few or inputs[0].shape[:2] != wanted.shape:
        return None
    return (wanted.of(inputs[0])[None],)


def _spread(_: torch.nn.Module, __: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor | None:
    """Put the output to where its input was taken from."""
    wanted = wanted_now()
    if wanted is None or not wanted.few or output.shape[:2] != (1, len(wanted.row_P)):
        return None
    return wanted.spread(output[0])

"""The output layer of a model, computed only at chosen positions.

The vocabulary is the widest layer of most models. The logits of a whole window cost more memory than everything else,
and only those at the targets are used. So the states are picked right before the output layer. What a model family does
to its logits afterwards (scaling, capping) still applies.

Shapes: B sequences of a batch, N tokens, P positions that are wanted, H hidden size, V vocabulary.
"""

import inspect
from typing import Any, Final

import torch
from transformers import Cache, PreTrainedModel

from ralm.errors import ModelError
from ralm.lm.local.wanted import Wanted, sent, wanted_now, wanting

_CACHE_ARGUMENTS: Final = ("cache", "past_key_values")
"""Names of the argument of `forward` that takes a cache; transformers 5.24 renamed the second to the first."""


class ChosenLogits:
    """A model whose logits are computed only at wanted positions.

    Other uses of the model are not affected: calls that do not come through this object and calls from other threads
    work as before.
    """

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        head = model.get_output_embeddings()
        if head is None:
            raise ModelError(f"{name} has no output layer over a vocabulary: it is not a language model.")
        self.model = model
        self.name = name
        self.arguments = frozenset(inspect.signature(model.forward).parameters)
        """The names of the arguments of the model's `forward`."""
        self._cache_argument = next((name for name in _CACHE_ARGUMENTS if name in self.arguments), None)
        head.register_forward_pre_hook(self._pick)

    @property
    def device(self) -> torch.device:
        """The device that token ids are sent to."""
        device: torch.device = self.model.device
        return device

    @property
    def vocabulary(self) -> int:
        """How many token ids the model knows."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    def __call__(
        self,
        input_BN: torch.Tensor,
        row_P: torch.Tensor,
        position_P: torch.Tensor,
        cache: Cache | None = None,
        **padding: torch.Tensor,
    ) -> torch.Tensor:
        """The logits (P, V), in the model's number format, after each wanted position.

        The model reads and extends the `cache`, if there is one. TypeError if its `forward` takes none.
        """
        wanted = Wanted((input_BN.shape[0], input_BN.shape[1]), row_P, position_P)
        options: dict[str, Any] = {"use_cache": cache is not None, **padding}
        if cache is not None:
            options[self._name_of_cache()] = cache
        with wanting(wanted):
            logits: torch.Tensor = self.model(input_ids=sent(input_BN, self.device), **options).logits
        if logits.shape[:2] != (1, len(row_P)):  # the model does not call its output layer in the usual way
            return wanted.of(logits)
        return logits[0]

    def _name_of_cache(self) -> str:
        if self._cache_argument is None:
            raise TypeError(f"forward() takes none of the arguments {', '.join(_CACHE_ARGUMENTS)}")
        return self._cache_argument

    def _pick(self, _: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor] | None:
        """Replace the states (B, N, H) with the wanted ones (1, P, H)."""
        wanted = wanted_now()
        if wanted is None or inputs[0].shape[:2] != wanted.shape:
            return None
        return (wanted.of(inputs[0])[None],)

    def check_numbers(self, log_probs: torch.Tensor) -> None:
        """Raise ModelError if a log-probability is NaN, so that no figure is made from it."""
        if bool(torch.isnan(log_probs).any()):
            dtype = str(self.model.dtype).removeprefix("torch.")
            remedy = "its weights are damaged" if dtype == "float32" else 'use `dtype="float32"` or `"bfloat16"`'
            raise ModelError(f"{self.name} gives log-probabilities that are not numbers in {dtype}: {remedy}.")

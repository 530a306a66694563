"""Requests of the harness to generate: their arguments as options, and the text of the tokens that are written."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ralm.errors import UsageError
from ralm.protocols import Tokenizer
from ralm.reading.pieces import GeneratedToken, StoppedText
from ralm.reading.plan import PlanOptions
from ralm.reading.sampling import GenerationOptions
from ralm.records import IntArray

MOST_TOKENS: Final = 256
"""How many tokens the harness asks for if a task does not say."""
_LENGTHS: Final = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_WITHOUT_EFFECT: Final[Mapping[str, Any]] = {"num_beams": 1, "num_return_sequences": 1, "repetition_penalty": 1.0}
"""Arguments that tasks give with values that change nothing."""


def generation_options(given: Mapping[str, Any], plan: PlanOptions, seed: int, *, bos: bool) -> GenerationOptions:
    """The options that `generation_kwargs` of a task stand for, read as the harness's `hf` does.

    With `bos` a reading begins with the special tokens that the plan says, else with none. `seed` is that of draws.
    Raises UsageError if an argument is not supported, or leaves no room for a context.
    """
    left = dict(given)
    lengths = [value for name in _LENGTHS if (value := left.pop(name, None)) is not None]
    stop = left.pop("until", None) or ()
    temperature = _temperature(left.pop("do_sample", None), left.pop("temperature", None))
    top_k, top_p = left.pop("top_k", None), left.pop("top_p", None)
    for name, value in left.items():
        if _WITHOUT_EFFECT.get(name) != value:
            raise UsageError(f"`generation_kwargs` has `{name}={value!r}`, which ralm does not have: leave it out.")
    drawn: dict[str, Any] = {}
    if temperature > 0:
        drawn = {"top_k": top_k if top_k and top_k > 0 else None, "top_p": top_p or 1.0, "seed": seed}
    new_tokens = int(lengths[0]) if lengths else MOST_TOKENS
    if new_tokens >= plan.max_length:
        raise UsageError(
            f"`max_gen_toks` {new_tokens} leaves no room for a context in the {plan.max_length} tokens that the model "
            "reads: lower it in `generation_kwargs`."
        )
    return GenerationOptions(
        new_tokens=new_tokens,
        stride=plan.stride,
        query_tokens=plan.query_tokens,
        document_tokens=plan.document_tokens,
        max_length=plan.max_length,
        bos=plan.bos if bos else "never",
        temperature=temperature,
        stop=tuple(text for text in ([stop] if isinstance(stop, str) else stop) if text),
        **drawn,
    )


def _temperature(do_sample: bool | None, temperature: float | None) -> float:
    """0 for greedy decoding, which `do_sample=False` always means."""
    if do_sample and not temperature:
        raise UsageError("`do_sample=True` needs a `temperature` above 0 in `generation_kwargs`.")
    return 0.0 if do_sample is False else float(temperature or 0.0)


class Written:
    """The text that is written behind a prompt (int64), up to the first stop string."""

    def __init__(self, prompt: IntArray, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._tokens: list[int] = []
        self._tokenizer = tokenizer
        self._stop = stop
        self._until = StoppedText(prompt, tokenizer, stop)

    def ends(self, token: GeneratedToken) -> bool:
        """Add a token; returns whether a stop string has come."""
        self._tokens.append(token.token)
        self._until.add(token)
        return self._until.found

    @property
    def text(self) -> str:
        """The text of all tokens, decoded by themselves and without special tokens as `hf` does, before the first stop
        string."""
        decode = getattr(self._tokenizer, "decode_words", self._tokenizer.decode)
        text = str(decode(np.array(self._tokens, dtype=np.int64)))
        return text[: min((at for one in self._stop if (at := text.find(one)) >= 0), default=len(text))]

"""Checks of arguments, and of what parts return: our own parts and those of users.

An error is one sentence that names the argument or the part. Option records declare their bounds instead (`Option`).
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.errors import PartError, UsageError
from ralm.protocols import LanguageModel, Retriever, traits_of
from ralm.records import NO_PASSAGE, Hits

MAX_COUNT: Final = 2**31 - 1
"""The largest count that an option accepts: lower layers number lengths, passages and lists in 32 bits."""
MAX_SEED: Final = 2**63 - 1


def check_count(name: str, value: int, *, minimum: int = 1, maximum: int = MAX_COUNT) -> None:
    """Raise UsageError if a whole number is below `minimum` or above `maximum`."""
    if not minimum <= value <= maximum:
        bound = f"at least {minimum:,}" if value < minimum else f"at most {maximum:,}"
        raise UsageError(f"`{name}` must be {bound}, not {value}.")


def check_number(name: str, value: float, *, minimum: float, maximum: float, above: bool = False) -> None:
    """Raise UsageError if a number is not finite or out of bounds; with `above`, `minimum` itself is too."""
    enough = value > minimum if above else value >= minimum
    if not (math.isfinite(value) and enough and value <= maximum):
        lower = f"above {minimum:g}" if above else f"at least {minimum:g}"
        raise UsageError(f"`{name}` must be {lower} and at most {maximum:g}, not {value}.")


def is_utf8(text: str) -> bool:
    """Return whether a text can be encoded: arguments that are not UTF-8 and lone surrogates cannot."""
    return text.isascii() or text == text.encode(errors="replace").decode()


def check_strings(name: str, value: object) -> None:
    """Raise UsageError if one string is given for several, which would be its letters."""
    if isinstance(value, str):
        raise UsageError(f"`{name}` must be a list of strings, not the string {value[:40]!r}: put it into a list.")


def check_search(queries: Sequence[str], k: int) -> None:
    """Raise UsageError if queries are one string, or if k is below 1."""
    check_strings("queries", queries)
    check_count("k", k)


def retrieve_checked(retriever: Retriever, queries: Sequence[str], k: int, passages: int | None = None) -> Hits:
    """Return the k best passages for each query, of so many in the corpus; PartError if the hits are invalid."""
    check_strings("queries", queries)
    k = k if passages is None else min(k, max(passages, 1))
    hits = retriever.retrieve(queries, k)
    fault = fault_of_hits(hits, len(queries), k, passages)
    if fault:
        raise PartError(f"the retriever {type(retriever).__name__} {fault}; see `Hits` for what it should give.")
    if hits.numbers_QK.shape[1] == 0:
        return Hits.none(len(queries), 1)
    return Hits(hits.numbers_QK.astype(np.int64, copy=False), hits.scores_QK.astype(np.float32, copy=False))


def config_of(part: object, what: str) -> dict[str, JsonValue]:
    """Return the `config` of a part; UsageError, which calls it `what`, if there is none or it is not JSON."""
    config: Mapping[str, JsonValue] | None = getattr(part, "config", None)
    if config is None:
        raise UsageError(f"the {what} {type(part).__name__} does not say what decides its results; give it a `config`.")
    try:
        json.dumps(dict(config))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the `config` of the {what} {type(part).__name__} cannot be written as JSON: {error}."
        ) from None
    return dict(config)


def stable_hits(retriever: Retriever) -> int:
    """Return the `stable` of a retriever: fewer than so many hits are the first of more; 0 if it has none."""
    stable: int = getattr(retriever, "stable", 0)
    return stable


def check_length(model: LanguageModel, max_length: int) -> None:
    """Raise UsageError if `max_length` exceeds what the model can read."""
    if max_length > model.max_length:
        raise UsageError(
            f"`max_length` {max_length} is beyond the {model.max_length} tokens that {model.name} can read; "
            f"give `max_length` {model.max_length} or less."
        )


def scores_given_texts(model: LanguageModel) -> bool:
    """Return whether a model scores given texts; some servers have only log-probabilities of what they generate."""
    traits = traits_of(model)
    return traits.scores_texts and traits.tier != "text"


def check_scores(model: LanguageModel, what: str) -> None:
    """Raise UsageError if a model does not score given texts, which `what` needs."""
    if not scores_given_texts(model):
        raise UsageError(
            f"{model.name} does not return log-probabilities of given texts, which {what} needs: use a local model or "
            "a server that returns them, such as vLLM or llama.cpp; this one can generate, `ask`, and write answers in "
            '`qa` (to choices with `join="answers"`).'
        )


def fault_of_hits(hits: Hits, queries: int, k: int, passages: int | None) -> str:
    """Return the fault of hits in words; empty if they are valid."""
    if not isinstance(hits, Hits):
        return f"gives {type(hits).__name__} and not Hits"
    numbers, scores = hits.numbers_QK, hits.scores_QK
    if len(hits) != queries or numbers.shape[1] > k:
        rows, columns = numbers.shape
        return f"gives {rows:,} rows of {columns:,} for {queries:,} queries and k = {k:,}"
    if numbers.dtype.kind not in "iu" or scores.dtype.kind not in "fiu":
        return f"gives numbers of type {numbers.dtype} and scores of type {scores.dtype}"
    if not (np.abs(scores, dtype=np.float64) <= np.finfo(np.float32).max).all():
        return "gives a score that is not finite"
    numbers = numbers.astype(np.int64, copy=False)
    maximum = np.iinfo(np.int64).max if passages is None else passages
    wrong = (numbers < NO_PASSAGE) | (numbers >= maximum)
    if wrong.any():
        total = "" if passages is None else f" of {passages:,}"
        return f"gives passage {numbers[wrong][0]}{total}"
    none = numbers == NO_PASSAGE
    if (none[:, :-1] & ~none[:, 1:]).any():
        return "gives a passage after an empty place"
    rising = np.sort(numbers, axis=1)
    twice = (rising[:, 1:] == rising[:, :-1]) & (rising[:, 1:] != NO_PASSAGE)
    if twice.any():
        return f"gives passage {rising[:, 1:][twice][0]} twice for one query"
    return ""

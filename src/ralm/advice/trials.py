"""The settings that `ralm tune` tries: combinations of options, and what one of them reads and predicts.

The cost of a setting is the number of tokens that the model would read for it alone, ranking included. It
does not depend on what others have read before: settings share their scores.
"""

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from itertools import product
from typing import Any, Final

from pydantic import JsonValue

from ralm.evaluation.perplexity import evaluate_text
from ralm.lm.scoring import RequestGroup, Scorer, merge_requests, request_key
from ralm.options import declared
from ralm.protocols import Reader, Reranker
from ralm.reading.in_context import InContext
from ralm.reading.plan import PlanOptions
from ralm.reading.sources import FromRetriever
from ralm.records import FloatArray, Request

_STRIDES: Final = (4, 8, 16, 32)
_QUERIES: Final = (16, 32, 64)
_CHOSEN: Final = ({"rerank": "none"}, {"rerank": "lexical"})
_ALONE: Final = (*_CHOSEN, {"rerank": "zero-shot", "candidates": 8})
_SEVERAL: Final = (
    *({"reader": "ensemble", "documents": k, "mixer": name} for k in (2, 4, 8) for name in ("similarity", "posterior")),
    *({"reader": "concatenation", "documents": k} for k in (2, 4)),
)
NONE: Final = "no passages"
DEFAULTS: Final = "defaults"


def combinations(given: Container[str], retrievers: Sequence[str]) -> list[dict[str, Any]]:
    """All combinations of values of the options that are tried and not given, by their names."""
    readings: Iterable[Mapping[str, Any]] = (
        *({"reader": "in-context", **chosen} for chosen in _ALONE),
        *({**reading, **chosen} for reading, chosen in product(_SEVERAL, _CHOSEN)),
    )
    found: dict[str, dict[str, Any]] = {}
    for stride, query, retriever, reading in product(_STRIDES, _QUERIES, retrievers, readings):
        one = {"stride": stride, "query_tokens": query, "retriever": retriever, **reading}
        one = {name: value for name, value in one.items() if name not in given}
        found.setdefault(repr(one), one)
    return [*found.values()]


def option_values(record: Any, base: Any, always: Container[str] = ()) -> Iterator[tuple[str, Any]]:
    """The options of a record and of the records in it that differ from those of `base` and have an effect, by the
    names of their flags; those named in `always` even if they are equal."""
    for one in declared(type(record)):  # type: ignore[arg-type]
        if one.option.needs is not None and not one.option.needs.met(record):
            continue
        value, before = getattr(record, one.field.name), getattr(base, one.field.name)
        name = one.flag.removeprefix("--")
        if is_dataclass(value):
            yield from option_values(value, before, always)
        elif one.option.flag != "" and (value != before or name in always):
            yield name, value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """A setting to try: its options by the names of their flags, as a settings file has them, and its parts."""

    options: Mapping[str, JsonValue]
    plan: PlanOptions
    reader: Reader
    source: FromRetriever | None
    reranker: Reranker | None = None
    role: str = ""
    """`NONE` or `DEFAULTS` for those that others are compared with."""

    @property
    def name(self) -> str:
        """The setting in a few words: how it reads, finds and chooses passages."""
        if self.role == NONE:
            return NONE
        get = self.options.get
        read = {"ensemble": "ensemble of {}", "concatenation": "{} together"}.get(str(get("reader")), "one passage")
        parts = [read.format(getattr(self.reader, "documents", 1)), get("mixer"), get("rerank"), get("retriever")]
        parts.append(DEFAULTS if self.role else None)
        return ", ".join(str(part) for part in parts if part not in (None, "bm25", "none"))

    @property
    def toml(self) -> str:
        """The options as a settings file."""
        return "".join(f"{name} = {_as_toml(value)}\n" for name, value in self.options.items())

    @classmethod
    def without_passages(cls, plan: PlanOptions) -> "Trial":
        """The plain model."""
        return cls(options={}, plan=plan, reader=InContext(), source=None, role=NONE)


def _as_toml(value: JsonValue) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_as_toml, value))}]"
    signs = (sign if sign.isprintable() and sign not in '"\\' else f"\\U{ord(sign):08X}" for sign in str(value))
    return f'"{"".join(signs)}"'


@dataclass(frozen=True, slots=True)
class TrialReading:
    """A document read with a setting: the tokens that were predicted, their negative log-probability in nats, and the
    tokens that the model would read for that alone."""

    tokens: int
    nats: float
    read: int


def read_document(trial: Trial, text: str, scorer: Scorer, limit_tokens: int) -> TrialReading:
    """Read the first tokens of a document with a setting. Raises what `evaluate_text` raises."""
    meter = MeteredScorer(scorer)
    found = evaluate_text(
        text,
        meter,
        trial.plan,
        source=trial.source,
        reranker=trial.reranker,
        reader=trial.reader,
        limit_tokens=limit_tokens,
    )
    measures = found.reading.measures
    return TrialReading(measures.tokens, measures.nll if math.isfinite(measures.nll) else math.inf, meter.tokens)


class MeteredScorer(Scorer):
    """Shares the scores of another scorer; `tokens` counts those that a scorer of its own would have read."""

    def __init__(self, scorer: Scorer) -> None:
        vars(self).update(vars(scorer))
        self.tokens = 0
        self._asked: set[bytes] = set()

    def log_probs(self, requests: Sequence[Request]) -> list[FloatArray]:
        """As those of the other scorer."""
        self._count(requests, 0)
        return super().log_probs(requests)

    def summaries(self, requests: Sequence[Request]) -> list[FloatArray]:
        """As those of the other scorer."""
        self._count(requests, 1)
        return super().summaries(requests)

    def grouped(self, groups: Sequence[RequestGroup]) -> list[FloatArray]:
        """As those of the other scorer."""
        self._count([request for group in groups for request in group.requests], 2)
        return super().grouped(groups)

    def _count(self, requests: Sequence[Request], kind: int) -> None:
        """Count the tokens of the sequences that answer the requests that were not asked for before."""
        keyed = {request_key(one, kind): one for one in requests}
        new = {key: one for key, one in keyed.items() if key not in self._asked}
        self._asked.update(new, map(request_key, new.values()))
        self.tokens += sum(len(one) for one, _ in merge_requests(new, prefixes=self.traits.merges_prefixes))

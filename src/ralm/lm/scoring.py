"""Scores requests with any language model: merges them, caches their scores, and answers them from a journal.

- A request whose tokens equal another's, or are a prefix of another's, is read together with it. In blocked windows
  these are all strides of a block that read the same document.
- A request that was scored before is answered from a cache.
- A journal, if given, keeps results for a later process.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from ralm.errors import ModelError
from ralm.lm.journal import MemoryJournal, request_key
from ralm.protocols import Continuations, LanguageModel, Tokenizer, WritingModel
from ralm.records import FloatArray, IntArray, Request, ScoringSequence
from ralm.terminal import progress_bar

Text = TypeVar("Text", Request, ScoringSequence)

TOKENS_AT_ONCE: Final = 1 << 22
"""Tokens of the requests that are merged at a time; merging copies them, so a whole plan would need too much memory."""
_ABOVE_ZERO: Final = 0.01
"""How far rounding may lift a log-probability above 0."""


class Scorer:
    """A language model with a cache of everything it scored: nothing is scored twice, and results are checked.

    It is a `LanguageModel` itself and works wherever one is expected; evaluations that are given the same scorer share
    its cache.

    `asked` counts the requests so far, `scored` those that this process had not scored before. A `journal` answers
    requests that an earlier process scored, and keeps the new results for the next process. `progress`: whether
    a bar shows how far the scoring is. `cache` reads the passes instead of the model, and shares them with the texts
    that the model continues.
    """

    def __init__(
        self,
        model: LanguageModel,
        journal: MemoryJournal | None = None,
        *,
        progress: bool = True,
        cache: "SharedCache | None" = None,
    ) -> None:
        self.model = model
        self.asked = 0
        self.scored = 0
        self._journal = journal
        self._read_by = cache or model
        self._progress = progress
        self._known: dict[bytes, FloatArray] = {}
        self._merges: bool = getattr(model, "merges_prefixes", True)
        self._vocabulary: int | None = getattr(model, "vocabulary", None)

    @classmethod
    def of(cls, model: LanguageModel) -> "Scorer":
        """The scorer itself if it is given one, else a new scorer for the model."""
        return model if isinstance(model, Scorer) else cls(model)

    def keeping(self, journal: MemoryJournal) -> "Scorer":
        """A scorer that shares what this one knows, and keeps what it scores itself in a journal."""
        scorer = copy(self)
        scorer._journal, scorer.asked, scorer.scored = journal, 0, 0
        return scorer

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.model.name

    @property
    def config(self) -> Mapping[str, Any]:
        """The model's own."""
        return self.model.config

    @property
    def max_length(self) -> int:
        """The most tokens that the model can read at once."""
        return self.model.max_length

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self.model.tokenizer

    @property
    def bounds(self) -> tuple[LanguageModel, LanguageModel] | None:
        """The model's own."""
        return getattr(self.model, "bounds", None)

    def score(self, passes: Sequence[ScoringSequence]) -> Iterable[FloatArray]:
        """The model's own results, not cached."""
        return self._read_by.score(passes)

    def log_probs(self, requests: Sequence[Request]) -> list[FloatArray]:
        """For each request, in order, the natural log-probability (float32) of each of its targets.

        Raises ModelError if a request is longer than the model reads, a token is not in its vocabulary, or the model
        does not return log-probabilities of the targets.
        """
        if not requests:
            return []
        self.asked += len(requests)
        found: list[FloatArray] = []
        with progress_bar("Scoring", total=len(requests), shown=self._progress) as advance:
            for some in split_by_tokens(requests, TOKENS_AT_ONCE):
                found += self._score(some, advance)
        return found

    def _score(self, requests: Sequence[Request], advance: Callable[[int], None]) -> list[FloatArray]:
        keys = [request_key(request) for request in requests]
        new: dict[bytes, _Unknown] = {}
        for key, request in zip(keys, requests, strict=True):
            if key not in self._known and key not in new:
                new[key] = _Unknown(key, _spelt(request), request)
        self.scored += len(new)
        waiting = Counter(key for key in keys if key in new)
        advance(len(requests) - waiting.total())
        for become_known in self._answer(list(new.values())):
            advance(sum(waiting[key] for key in become_known))
        return [self._known[key] for key in keys]

    def _answer(self, new: Sequence["_Unknown"]) -> Iterator[list[bytes]]:
        """Answer these from the journal or the model; yields the keys of those that are now known."""
        left = []
        for one in new:
            found = None if self._journal is None else self._journal.get(one.key)
            if found is None:
                left.append(one)
            else:
                self._known[one.key] = found
                yield [one.key]
        for answers in self._read(_merge(left, prefixes=self._merges)):
            self._known.update((one.key, log_probs) for one, log_probs in answers)
            if self._journal is not None:
                self._journal.add((one.key, log_probs) for one, log_probs in answers)
            yield [one.key for one, _ in answers]

    def _read(self, merged: Sequence["_Merged"]) -> Iterator["_Answers"]:
        """The answers of each pass as soon as it is read, the longest pass first."""
        merged = sorted(merged, key=lambda one: -len(one.tokens))
        passes = [one.scoring_pass() for one in merged]
        for one, scored, log_probs_P in zip(merged, passes, self._given(passes), strict=True):
            yield one.answers(scored, log_probs_P)

    def _given(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        """The checked log-probabilities of each pass."""
        if not passes:
            return
        name = self.model.name
        _check_passes(passes, name, self.model.max_length, self._vocabulary)
        given = iter(self._read_by.score(passes))
        try:
            for number, one in enumerate(passes):
                log_probs_P = next(given, None)
                if log_probs_P is None:
                    raise ModelError(f"{name} gives log-probabilities for {number:,} of {len(passes):,} passes.")
                yield _checked(log_probs_P, one, name)
            if next(given, None) is not None:
                raise ModelError(f"{name} gives log-probabilities for more than the {len(passes):,} passes asked for.")
        finally:
            if isinstance(given, Generator):
                given.close()  # now, and not when it is garbage-collected: threads may be working for it


@dataclass(frozen=True, slots=True, eq=False)
class _Unknown:
    """A request to score: its key, its tokens as bytes, and itself."""

    key: bytes
    spelt: bytes
    request: Request

    def __len__(self) -> int:
        """The number of targets."""
        return len(self.request.targets)


_Answers: TypeAlias = Sequence[tuple[_Unknown, FloatArray]]


@dataclass(frozen=True, slots=True, eq=False)
class _Merged:
    """Tokens that are read once, and the sequences that this pass scores."""

    tokens: IntArray
    unknown: list[_Unknown] = field(default_factory=list)

    def scoring_pass(self) -> ScoringSequence:
        """The pass that scores the targets of all sequences."""
        targets = [np.arange(len(one.request) - len(one), len(one.request)) for one in self.unknown]
        return ScoringSequence(self.tokens, np.unique(np.concatenate(targets)))

    def answers(self, scored: ScoringSequence, log_probs_P: FloatArray) -> _Answers:
        """The results of that pass for each sequence."""
        firsts = [int(np.searchsorted(scored.targets_P, len(one.request) - len(one))) for one in self.unknown]
        return [(one, log_probs_P[first : first + len(one)]) for one, first in zip(self.unknown, firsts, strict=True)]


def split_by_tokens(texts: Iterable[Text], tokens: int) -> Iterator[list[Text]]:
    """Requests or passes in order, about `tokens` tokens at a time."""
    some: list[Text] = []
    read = 0
    for text in texts:
        some.append(text)
        read += len(text)
        if read >= tokens:
            yield some
            some, read = [], 0
    if some:
        yield some


def _merge(unknown: Iterable[_Unknown], *, prefixes: bool) -> list[_Merged]:
    """The token sequences to read; with `prefixes`, sequences that are prefixes of others share their pass.

    In lexicographic order a sequence comes directly before all sequences that begin with it. So it is enough to compare
    each sequence with its successor, from the last to the first.
    """
    merged: list[_Merged] = []
    longest = b""
    for one in sorted(unknown, key=lambda one: one.spelt, reverse=True):
        if not (prefixes and longest.startswith(one.spelt)):
            merged.append(_Merged(tokens=np.frombuffer(one.spelt, dtype=">i4").astype(np.int64)))
            longest = one.spelt
        merged[-1].unknown.append(one)
    return merged


def _spelt(request: Request) -> bytes:
    """The tokens of a request as bytes that sort like the tokens."""
    return b"".join(part.astype(">i4").tobytes() for part in (request.document, request.context, request.targets))


def _check_passes(passes: Sequence[ScoringSequence], name: str, max_length: int, vocabulary: int | None) -> None:
    """Raise ModelError if a pass is too long for a model, or has a token that the model does not know."""
    longest = max(map(len, passes))
    if longest > max_length:
        raise ModelError(f"{name} reads at most {max_length} tokens at once, not {longest}.")
    for one in passes:
        least, most = int(one.tokens_N.min()), int(one.tokens_N.max())
        if least < 0 or (vocabulary is not None and most >= vocabulary):
            raise ModelError(
                f"token {most if least >= 0 else least} is not one of the {vocabulary or 'ids'} that {name} knows: its "
                "tokenizer belongs to another model."
            )


def _checked(given: object, asked: ScoringSequence, name: str) -> FloatArray:
    """Log-probabilities as the model gave them; ModelError if they are not log-probabilities of the targets of a
    pass."""
    try:
        with np.errstate(over="ignore"):
            log_probs_P: FloatArray = np.asarray(given, dtype=np.float32)
    except (TypeError, ValueError):
        raise ModelError(f"{name} gives {type(given).__name__} instead of log-probabilities.") from None
    targets = len(asked.targets_P)
    if log_probs_P.shape != (targets,):
        raise ModelError(f"{name} gives log-probabilities of shape {log_probs_P.shape} for {targets:,} targets.")
    if np.isnan(log_probs_P).any():
        raise ModelError(f"{name} gives log-probabilities that are not numbers.")
    if (log_probs_P > _ABOVE_ZERO).any():
        raise ModelError(f"{name} gives a log-probability of {log_probs_P.max():g}; none can be above 0.")
    return log_probs_P


class SharedCache:
    """What a model has read, for its scores and for the texts that it continues; made when it is first needed.

    Where the model's `Continuations` cannot score, or it reads a token by how many follow it (`merges_prefixes`), the
    model scores by itself, and nothing is shared.
    """

    def __init__(self, model: WritingModel) -> None:
        self._model = model

    @cached_property
    def continuations(self) -> Continuations:
        """The texts that the model is continuing."""
        return self._model.continuations()

    def score(self, passes: Sequence[ScoringSequence]) -> Iterable[FloatArray]:
        """As `LanguageModel.score`; what passes share with the texts of the previous call is not read again.

        All passes are held at once, so they should be as few as the texts that are continued together.
        """
        apart = not getattr(self._model, "merges_prefixes", True)
        score = self._model.score if apart else getattr(self.continuations, "score", self._model.score)
        found: Iterable[FloatArray] = score(passes)
        return found


def common_prefix_length(one: IntArray, other: IntArray) -> int:
    """The length of the common prefix of two texts (int64)."""
    shortest = min(len(one), len(other))
    differ = np.flatnonzero(one[:shortest] != other[:shortest])
    return int(differ[0]) if len(differ) else shortest

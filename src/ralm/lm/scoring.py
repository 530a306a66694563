"""Scores requests with any language model: merges them, caches their scores, and answers them from a store.

- A request whose tokens equal another's, or are a prefix of another's, is read together with it. In blocked windows
  these are all strides of a block that read the same document.
- A request that was scored before is answered from a cache.
- A store, if given, keeps results for a later process.
- Mixers may need more than log-probabilities: numbers of each distribution, or of several at the same target.
"""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from ralm.errors import ModelError
from ralm.protocols import Continuations, LanguageModel, TargetGroups, Tokenizer, WritingModel, traits_of
from ralm.records import FloatArray, IntArray, PromptPrefix, Request, ScoringSequence, TargetGroup, TextsAhead
from ralm.storage.store import Store
from ralm.terminal import progress_bar

_Text = TypeVar("_Text", Request, ScoringSequence, "RequestGroup")
_Read: TypeAlias = Callable[[Sequence[ScoringSequence]], Iterable[FloatArray]]

TOKENS_AT_ONCE: Final = 1 << 22
"""Tokens of the requests that are merged at a time; merging copies them, so a whole plan would need too much memory."""
_ABOVE_ZERO: Final = 0.01
"""How far rounding may lift a log-probability above 0."""
_KEY_BYTES: Final = 16
_SUMMARY: Final = 3
"""Numbers of a target in `ModelTraits.summaries`."""
_HELD_TARGETS: Final = 1 << 14
"""Targets of the sequences whose states are held at once: 256 MiB of 4096 float32 numbers each."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestGroup:
    """K requests with the same targets; `reduce` is that of `TargetGroup`, and `name` holds all that decides its
    numbers besides the distributions."""

    requests: Sequence[Request]
    name: str
    reduce: Callable[[Any, Any], Any]

    def __len__(self) -> int:
        """The number of targets in all requests."""
        return len(self.requests) * self.targets

    @property
    def targets(self) -> int:
        """T, the number of targets of each request."""
        return len(self.requests[0].targets)

    @property
    def key(self) -> bytes:
        """A hash of all that decides the numbers."""
        parts = [*map(request_key, self.requests), self.name.encode()]
        return blake2b(b"".join(parts), digest_size=_KEY_BYTES, person=b"group").digest()


class Scorer:
    """A language model with a cache of everything it scored: nothing is scored twice, and results are checked.

    It is a `LanguageModel` itself and works wherever one is expected; evaluations that are given the same scorer share
    its cache.

    `asked` counts the requests so far, `scored` those that this process had not scored before. A `store` answers
    requests that an earlier process scored, and keeps the new results for the next process. `progress` shows a bar.
    `cache` scores instead of the model, and shares what it reads with the texts that the model continues.
    """

    def __init__(
        self,
        model: LanguageModel,
        store: Store | None = None,
        *,
        progress: bool = True,
        cache: "SharedCache | None" = None,
    ) -> None:
        self.model = model
        self.asked = 0
        self.scored = 0
        self._store = store
        self._read_by = cache or model
        self._progress = progress
        self._known: dict[bytes, FloatArray] = {}
        self.traits = traits_of(model)

    @classmethod
    def of(cls, model: LanguageModel) -> "Scorer":
        """The scorer itself if it is given one, else a new scorer for the model."""
        return model if isinstance(model, Scorer) else cls(model)

    def with_store(self, store: Store) -> "Scorer":
        """A scorer that shares the cache of this one, and keeps what it scores itself in a store."""
        scorer = copy(self)
        scorer._store, scorer.asked, scorer.scored = store, 0, 0
        return scorer

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.model.name

    @property
    def config(self) -> Mapping[str, Any]:
        """The `config` of the model."""
        return self.model.config

    @property
    def max_length(self) -> int:
        """The maximum number of tokens that the model can read at once."""
        return self.model.max_length

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self.model.tokenizer

    @property
    def bounds(self) -> tuple[LanguageModel, LanguageModel] | None:
        """The models that score lower and upper bounds, if the model cannot score."""
        return self.traits.bounds

    def score(self, sequences: Sequence[ScoringSequence]) -> Iterable[FloatArray]:
        """The results of the model, not cached."""
        return self._read_by.score(sequences)

    def log_probs(self, requests: Sequence[Request]) -> list[FloatArray]:
        """For each request, in order, the natural log-probability (float32) of each of its targets.

        Raises ModelError if a request is longer than the model reads, a token is not in its vocabulary, or the model
        does not return log-probabilities of the targets.
        """
        return self._all(requests, self.score, ())

    def summaries(self, requests: Sequence[Request]) -> list[FloatArray]:
        """For each request, in order, the log-probability, the entropy and the highest log-probability (float32, T x 3)
        of each of its T targets. Raises what `log_probs` raises."""
        read = self.traits.summaries or partial(_summaries, self._distributions())
        found = self._all(requests, read, (_SUMMARY,))
        for request, values_TS in zip(requests, found, strict=True):
            self._known.setdefault(request_key(request), np.ascontiguousarray(values_TS[:, 0]))
        return found

    def grouped(self, groups: Sequence[RequestGroup]) -> list[FloatArray]:
        """For each group, in order, the log-probability of each of its T targets after each of its K requests, and the
        numbers of its `reduce` (float32, T x (K + S)). Raises what `summaries` raises."""
        keys = [group.key for group in groups]
        new = {key: group for key, group in zip(keys, groups, strict=True) if key not in self._known}
        self.asked += sum(len(group.requests) for group in groups)
        with progress_bar("Scoring", total=len(groups), shown=self._progress) as advance:
            stored = {} if self._store is None else self._store.get(new)
            for key, value in stored.items():
                group = new.pop(key)
                self._keep(key, group, np.frombuffer(value, "<f4").astype(np.float32).reshape(group.targets, -1))
            advance(len(groups) - len(new))
            self.scored += len(
                {key for group in new.values() for key in map(request_key, group.requests)} - {*self._known}
            )
            for key, values in self._reduced(new):
                self._keep(key, new[key], values)
                if self._store is not None:
                    self._store.put([(key, values.astype("<f4").tobytes())])
                advance(1)
        return [self._known[key] for key in keys]

    def _keep(self, key: bytes, group: RequestGroup, values_TS: FloatArray) -> None:
        """Remember the numbers of a group, and the log-probabilities of its requests."""
        self._known[key] = values_TS
        for request, log_probs_T in zip(group.requests, values_TS.T, strict=False):
            self._known.setdefault(request_key(request), np.ascontiguousarray(log_probs_T))

    def _reduced(self, new: Mapping[bytes, RequestGroup]) -> Iterator[tuple[bytes, FloatArray]]:
        """The numbers of groups, by their keys; ModelError if the model does not return log-probabilities."""
        if not new:
            return
        held, read = _HELD_TARGETS, self.traits.grouped
        if read is None:
            from ralm.lm.local.grouped import from_distributions

            held, read = 1, partial(from_distributions, self._distributions())  # whole distributions of one group
        results = read(self._job(some) for some in split_by_tokens(new.values(), held))
        found = (values_TS for results_of_job in results for values_TS in results_of_job)
        for (key, group), values_TS in zip(new.items(), found, strict=True):
            if np.isnan(values_TS[:, : len(group.requests)]).any():
                raise ModelError(f"{self.name} returned log-probabilities that are not numbers.")
            yield key, values_TS

    def _job(self, groups: Sequence[RequestGroup]) -> TargetGroups:
        """The sequences that answer some groups, the longest first, and where each group's targets are in them."""
        requests = {request_key(request): request for group in groups for request in group.requests}
        merged = merge_requests(requests, prefixes=self.traits.merges_prefixes)
        merged.sort(key=lambda one: -len(one[0]))
        sequences = [sequence for sequence, _ in merged]
        _check_sequences(sequences, self.name, self.max_length, self.traits.vocabulary)
        places = {
            key: (number, np.searchsorted(sequence.targets_P, _first_target(requests[key])))
            for number, (sequence, keys) in enumerate(merged)
            for key in keys
        }
        found = [np.array([places[request_key(request)] for request in group.requests]) for group in groups]
        pairs = zip(groups, found, strict=True)
        return sequences, [TargetGroup(at[:, 0], at[:, 1], group.targets, group.reduce) for group, at in pairs]

    def _distributions(self) -> _Read:
        assert self.traits.distributions is not None, "mixers are checked before"
        return self.traits.distributions

    def _all(self, requests: Sequence[Request], read: _Read, shape: tuple[int, ...]) -> list[FloatArray]:
        if not requests:
            return []
        self.asked += len(requests)
        found: list[FloatArray] = []
        with progress_bar("Scoring", total=len(requests), shown=self._progress) as advance:
            for some in _at_once(requests, prefixes=self.traits.merges_prefixes):
                found += self._score(some, advance, read, shape)
        return found

    def _score(
        self, requests: Sequence[Request], advance: Callable[[int], None], read: _Read, shape: tuple[int, ...]
    ) -> list[FloatArray]:
        keys = [request_key(request, *shape) for request in requests]
        new = {key: request for key, request in zip(keys, requests, strict=True) if key not in self._known}
        self.scored += len(new)
        waiting = Counter(key for key in keys if key in new)
        advance(len(requests) - waiting.total())
        for scored_keys in self._answer(new, read, shape):
            advance(sum(waiting[key] for key in scored_keys))
        return [self._known[key] for key in keys]

    def _answer(self, new: Mapping[bytes, Request], read: _Read, shape: tuple[int, ...]) -> Iterator[Collection[bytes]]:
        """Answer requests from the store, or by `read`, whose numbers of each target have this shape; yields the keys
        of those that are now known."""
        stored = {} if self._store is None else self._store.get(new)
        self._known.update(
            (key, np.frombuffer(value, "<f4").astype(np.float32).reshape(-1, *shape)) for key, value in stored.items()
        )
        yield stored.keys()
        left = {key: request for key, request in new.items() if key not in stored}
        merged = merge_requests(left, prefixes=self.traits.merges_prefixes)
        merged.sort(key=lambda one: -len(one[0]))
        scored = self._model_log_probs([sequence for sequence, _ in merged], read, shape)
        for (sequence, some), log_probs_P in zip(merged, scored, strict=True):
            firsts = {key: np.searchsorted(sequence.targets_P, _first_target(left[key])) for key in some}
            answers = {key: log_probs_P[first : first + len(left[key].targets)] for key, first in firsts.items()}
            self._known.update(answers)
            if self._store is not None:
                self._store.put((key, log_probs.astype("<f4").tobytes()) for key, log_probs in answers.items())
            yield some

    def _model_log_probs(
        self, sequences: Sequence[ScoringSequence], read: _Read, shape: tuple[int, ...]
    ) -> Iterator[FloatArray]:
        if not sequences:
            return
        name = self.model.name
        _check_sequences(sequences, name, self.model.max_length, self.traits.vocabulary)
        results = iter(read(sequences))
        try:
            for number, sequence in enumerate(sequences):
                log_probs_P = next(results, None)
                if log_probs_P is None:
                    raise ModelError(
                        f"{name} returned log-probabilities for {number:,} of {len(sequences):,} sequences."
                    )
                yield _checked(log_probs_P, sequence, name, shape)
            if next(results, None) is not None:
                raise ModelError(f"{name} returned log-probabilities for more than the {len(sequences):,} sequences.")
        finally:
            if isinstance(results, Generator):
                results.close()  # now, and not when it is garbage-collected: threads may be working for it


def split_by_tokens(
    texts: Iterable[_Text], tokens: int, count_of: Callable[[_Text], int] = len
) -> Iterator[list[_Text]]:
    """Requests or sequences in order, about `tokens` tokens at a time."""
    some: list[_Text] = []
    count = 0
    for text in texts:
        some.append(text)
        count += count_of(text)
        if count >= tokens:
            yield some
            some, count = [], 0
    if some:
        yield some


def _at_once(requests: Iterable[Request], *, prefixes: bool) -> Iterator[list[Request]]:
    """Requests in order, in parts that are merged; with `prefixes`, one that begins with the request before counts as
    what it adds. So a long text without passages stays one sequence, however short its strides are."""
    before_N = np.zeros(0, dtype=np.int64)

    def added(request: Request) -> int:
        nonlocal before_N
        shared, before_N = before_N, _tokens(request)
        return len(request) - (len(shared) if prefixes and _begins(before_N, shared) else 0)

    return split_by_tokens(requests, TOKENS_AT_ONCE, added)


def merge_requests(new: Mapping[bytes, Request], *, prefixes: bool) -> list[tuple[ScoringSequence, list[bytes]]]:
    """The sequences to read, each with the keys of the requests that it answers; with `prefixes`, a request that is a
    prefix of another shares its sequence.

    In lexicographic order a request comes directly before all requests that begin with it. So it is enough to compare
    each request with its successor, from the last to the first. Of requests that follow as prefixes of one another,
    as the strides of a text do, only the longest is compared.
    """
    chains: list[list[bytes]] = []
    longest: list[IntArray] = []
    for key, one in new.items():
        tokens_N = _tokens(one)
        if prefixes and longest and _begins(tokens_N, longest[-1]):
            chains[-1].append(key)
            longest[-1] = tokens_N
        else:
            chains.append([key])
            longest.append(tokens_N)
    # big-endian, so that bytes sort like the ids, which are not negative
    tokens = [tokens_N.astype(">i4").tobytes() for tokens_N in longest]
    groups: list[tuple[int, list[bytes]]] = []
    for number in sorted(range(len(chains)), key=tokens.__getitem__, reverse=True):
        if not (prefixes and groups and tokens[groups[-1][0]].startswith(tokens[number])):
            groups.append((number, []))
        groups[-1][1].extend(reversed(chains[number]))
    merged = []
    for number, keys in groups:
        targets_P = np.unique(np.concatenate([np.arange(_first_target(new[key]), len(new[key])) for key in keys]))
        merged.append((ScoringSequence(longest[number], targets_P), keys))
    return merged


def _tokens(request: Request) -> IntArray:
    return np.concatenate([request.document, request.context, request.targets])


def _begins(text_N: IntArray, beginning_N: IntArray) -> bool:
    return np.array_equal(text_N[: len(beginning_N)], beginning_N)


def _first_target(request: Request) -> int:
    return len(request) - len(request.targets)


def request_key(request: Request, numbers: int = 0) -> bytes:
    """A hash of all tokens of a request and of the number of targets, and of how many `numbers` are kept of each, if
    not only its log-probability; where the document ends makes no difference."""
    person = numbers.to_bytes(1, "little")  # zeros are the default
    digest = blake2b(len(request.targets).to_bytes(8, "little"), digest_size=_KEY_BYTES, person=person)
    for part in (request.document, request.context, request.targets):
        digest.update(part.tobytes())
    return digest.digest()


def _check_sequences(sequences: Sequence[ScoringSequence], name: str, max_length: int, vocabulary: int | None) -> None:
    longest = max(map(len, sequences))
    if longest > max_length:
        raise ModelError(f"{name} reads at most {max_length} tokens at once, not {longest}.")
    for one in sequences:
        smallest, largest = int(one.tokens_N.min()), int(one.tokens_N.max())
        if smallest < 0 or (vocabulary is not None and largest >= vocabulary):
            raise ModelError(
                f"token {largest if smallest >= 0 else smallest} is not one of the {vocabulary or 'ids'} that {name} "
                "knows: its tokenizer belongs to another model."
            )


def _summaries(distributions: _Read, sequences: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
    """As `ModelTraits.summaries`, by a model that gives whole distributions."""
    for sequence, log_probs_PV in zip(sequences, distributions(sequences), strict=True):
        chosen_P = np.take_along_axis(log_probs_PV, sequence.tokens_N[sequence.targets_P][:, None], axis=1)[:, 0]
        yield np.column_stack([chosen_P, summary_of(log_probs_PV)])


def summary_of(log_probs_PV: FloatArray) -> FloatArray:
    """The entropy in nats and the highest log-probability (float32, P x 2) of P distributions."""
    bounded_PV = np.maximum(log_probs_PV, np.finfo(np.float32).min)  # 0 times -inf would be NaN
    return np.column_stack([-(np.exp(log_probs_PV) * bounded_PV).sum(axis=1), log_probs_PV.max(axis=1)])


def _checked(result: object, sequence: ScoringSequence, name: str, shape: tuple[int, ...]) -> FloatArray:
    """A result of a model as an array; ModelError if it does not hold log-probabilities of the targets."""
    try:
        with np.errstate(over="ignore"):
            log_probs_P: FloatArray = np.asarray(result, dtype=np.float32)
    except (TypeError, ValueError):
        raise ModelError(f"{name} returned {type(result).__name__} instead of log-probabilities.") from None
    targets = len(sequence.targets_P)
    if log_probs_P.shape != (targets, *shape):
        raise ModelError(f"{name} returned log-probabilities of shape {log_probs_P.shape} for {targets:,} targets.")
    if np.isnan(log_probs_P).any():
        raise ModelError(f"{name} returned log-probabilities that are not numbers.")
    if (log_probs_P[(..., 0) if shape else ...] > _ABOVE_ZERO).any():
        raise ModelError(f"{name} returned a log-probability of {log_probs_P.max():g}; none can be above 0.")
    return log_probs_P


class SharedCache:
    """One cache for scoring and writing: a prompt that is continued and whose known answer is scored is read once.
    Nothing is shared if the model's `Continuations` cannot score, or if it does not merge prefixes."""

    def __init__(self, model: WritingModel) -> None:
        self._model = model
        self._apart = not traits_of(model).merges_prefixes

    @cached_property
    def continuations(self) -> Continuations:
        """The texts that the model is continuing."""
        return self._model.continuations()

    @cached_property
    def read_ahead(self) -> Callable[[Sequence[TextsAhead]], None] | None:
        """The method `read_ahead` of the `Continuations`, if there is one."""
        return getattr(self.continuations, "read_ahead", None)

    def mark(self, prompts: Iterable[PromptPrefix]) -> None:
        """Keep what prompts share with others, if the model keeps beginnings of texts; call it before they are read."""
        if (prefixes := getattr(self._model, "prefixes", None)) is not None:
            for prompt in prompts:
                if len(shared := prompt.tokens[: prompt.shared]):
                    prefixes.mark(shared)

    def score(self, sequences: Sequence[ScoringSequence]) -> Iterable[FloatArray]:
        """As `LanguageModel.score`, but what sequences share with the texts of the previous call is not read again. All
        sequences are held at once, so they should be few."""
        score = self._model.score if self._apart else getattr(self.continuations, "score", self._model.score)
        scored: Iterable[FloatArray] = score(sequences)
        return scored


def common_prefix_length(one: IntArray, other: IntArray) -> int:
    """The length of the common prefix of two texts (int64)."""
    shortest = min(len(one), len(other))
    differ = np.flatnonzero(one[:shortest] != other[:shortest])
    return int(differ[0]) if len(differ) else shortest

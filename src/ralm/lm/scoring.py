"""Scores requests with any language model: merges them, caches their scores, and answers them from a store.

- A request whose tokens equal another's, or are a prefix of another's, is read together with it. In blocked windows
  these are all strides of a block that read the same document.
- A request that was scored before is answered from a cache.
- A store, if given, keeps results for a later process.
"""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from copy import copy
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final, TypeVar

import numpy as np

from ralm.errors import ModelError
from ralm.protocols import Continuations, LanguageModel, WritingModel, traits_of
from ralm.records import FloatArray, IntArray, Request, ScoringSequence, TextsAhead
from ralm.storage.store import Store
from ralm.terminal import progress_bar

_Text = TypeVar("_Text", bound=Sized)

TOKENS_AT_ONCE: Final = 1 << 22
"""Tokens of the requests that are merged at a time; merging copies them, so a whole plan would need too much memory."""
_ABOVE_ZERO: Final = 0.01
"""How far rounding may lift a log-probability above 0."""
_KEY_BYTES: Final = 16


class Scorer:
    """A language model with a cache of everything it scored: nothing is scored twice, and results are checked.

    It is a `LanguageModel` itself and works wherever one is expected; evaluations that are given the same scorer share
    its cache. `scored` counts the requests that this process had not scored before.

    Args:
        model: The model that scores.
        store: Answers requests that an earlier process scored, and keeps the new results for the next one.
        progress: Whether a bar is shown.
        cache: Scores instead of the model, and shares what it reads with the texts that it continues.
    """

    def __init__(
        self,
        model: LanguageModel,
        store: Store | None = None,
        *,
        progress: bool = True,
        cache: "SharedCache | None" = None,
    ) -> None:
        self.model: LanguageModel = model.model if isinstance(model, Scorer) else model
        self.name = self.model.name
        self.max_length = self.model.max_length
        self.tokenizer = self.model.tokenizer
        self.scored = 0
        self._store = store
        self._read_by = cache or self.model
        self._progress = progress
        self._scores: dict[bytes, FloatArray] = {}
        self.traits = traits_of(self.model)

    @classmethod
    def of(cls, model: LanguageModel) -> "Scorer":
        """Return the scorer itself if it is given one, else a new scorer for the model."""
        return model if isinstance(model, Scorer) else cls(model)

    def with_store(self, store: Store) -> "Scorer":
        """Return a scorer that shares the cache of this one, and keeps what it scores itself in a store."""
        scorer = copy(self)
        scorer._store, scorer.scored = store, 0
        return scorer

    @property
    def config(self) -> Mapping[str, Any]:
        """The `config` of the model."""
        return self.model.config

    def score(self, sequences: Sequence[ScoringSequence]) -> Iterable[FloatArray]:
        """Return the results of the model, not cached."""
        return self._read_by.score(sequences)

    def log_probs(self, requests: Sequence[Request]) -> list[FloatArray]:
        """Return the natural log-probability (float32) of each target of each request, in order.

        Raises:
            ModelError: A request is longer than the model reads, a token is not in its vocabulary, or the model does
                not return log-probabilities of the targets.
        """
        if not requests:
            return []
        scored: list[FloatArray] = []
        with progress_bar("Scoring", total=len(requests), shown=self._progress) as advance:
            for part in _at_once(requests, prefixes=self.traits.merges_prefixes):
                scored += self._score(part, advance)
        return scored

    def _score(self, requests: Sequence[Request], advance: Callable[[int], None]) -> list[FloatArray]:
        keys = [_request_key(request) for request in requests]
        new = {key: request for key, request in zip(keys, requests, strict=True) if key not in self._scores}
        self.scored += len(new)
        waiting = Counter(key for key in keys if key in new)
        advance(len(requests) - waiting.total())
        for scored_keys in self._answer(new):
            advance(sum(waiting[key] for key in scored_keys))
        return [self._scores[key] for key in keys]

    def _answer(self, new: Mapping[bytes, Request]) -> Iterator[Collection[bytes]]:
        """Answer requests from the store or by the model; yield the keys of those that are answered."""
        stored = {} if self._store is None else self._store.get(new)
        self._scores.update((key, np.frombuffer(value, "<f4").astype(np.float32)) for key, value in stored.items())
        yield stored.keys()
        missing = {key: request for key, request in new.items() if key not in stored}
        merged = merge_requests(missing, prefixes=self.traits.merges_prefixes)
        merged.sort(key=lambda pair: -len(pair[0]))
        scored = self._model_log_probs([sequence for sequence, _ in merged])
        for (sequence, keys), log_probs_P in zip(merged, scored, strict=True):
            firsts = {key: np.searchsorted(sequence.targets_P, _first_target(missing[key])) for key in keys}
            answers = {key: log_probs_P[first : first + len(missing[key].targets)] for key, first in firsts.items()}
            self._scores.update(answers)
            if self._store is not None:
                self._store.put((key, log_probs.astype("<f4").tobytes()) for key, log_probs in answers.items())
            yield keys

    def _model_log_probs(self, sequences: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        if not sequences:
            return
        name = self.model.name
        _check_sequences(sequences, name, self.model.max_length, self.traits.vocabulary)
        results = iter(self.score(sequences))
        try:
            for number, sequence in enumerate(sequences):
                log_probs_P = next(results, None)
                if log_probs_P is None:
                    raise ModelError(
                        f"{name} returned log-probabilities for {number:,} of {len(sequences):,} sequences."
                    )
                yield _checked(log_probs_P, sequence, name)
            if next(results, None) is not None:
                raise ModelError(f"{name} returned log-probabilities for more than the {len(sequences):,} sequences.")
        finally:
            if isinstance(results, Generator):
                results.close()  # now, and not when it is garbage-collected: threads may be working for it


def split_by_tokens(
    texts: Iterable[_Text], tokens: int, count_of: Callable[[_Text], int] = len
) -> Iterator[list[_Text]]:
    """Yield texts in order, about `tokens` tokens at a time."""
    group: list[_Text] = []
    count = 0
    for text in texts:
        group.append(text)
        count += count_of(text)
        if count >= tokens:
            yield group
            group, count = [], 0
    if group:
        yield group


def groups_that_fit(lengths: Sequence[Sequence[int]], tokens: int) -> Iterator[range]:
    """Yield the numbers of consecutive items whose texts, padded to the longest, have at most `tokens` tokens."""
    begin = rows = longest = 0
    for number, texts in enumerate(lengths):
        rows, longest = rows + len(texts), max(longest, *texts, 0)
        if number > begin and rows * longest > tokens:
            yield range(begin, number)
            begin, rows, longest = number, len(texts), max(0, *texts, 0)
    if begin < len(lengths):
        yield range(begin, len(lengths))


def _at_once(requests: Iterable[Request], *, prefixes: bool) -> Iterator[list[Request]]:
    """Yield requests in parts that are merged; with `prefixes`, one counts as what it adds to the one before."""
    before_N = np.zeros(0, dtype=np.int64)

    def added(request: Request) -> int:
        nonlocal before_N
        shared, before_N = before_N, _tokens(request)
        return len(request) - (len(shared) if prefixes and _begins(before_N, shared) else 0)

    return split_by_tokens(requests, TOKENS_AT_ONCE, added)


def merge_requests(new: Mapping[bytes, Request], *, prefixes: bool) -> list[tuple[ScoringSequence, list[bytes]]]:
    """Return the sequences to read, each with the keys of the requests that it answers.

    With `prefixes`, a request that is a prefix of another shares its sequence. In lexicographic order it comes directly
    before one that begins with it; only the longest of a chain of prefixes, as the strides of a text are, is compared.
    """
    chains: list[list[bytes]] = []
    longest: list[IntArray] = []
    for key, request in new.items():
        tokens_N = _tokens(request)
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


def _request_key(request: Request) -> bytes:
    """Return a hash of all tokens of a request and of the number of targets, wherever the document ends."""
    digest = blake2b(len(request.targets).to_bytes(8, "little"), digest_size=_KEY_BYTES)
    for part in (request.document, request.context, request.targets):
        digest.update(part.tobytes())
    return digest.digest()


def _check_sequences(sequences: Sequence[ScoringSequence], name: str, max_length: int, vocabulary: int | None) -> None:
    longest = max(map(len, sequences))
    if longest > max_length:
        raise ModelError(f"{name} reads at most {max_length} tokens at once, not {longest}.")
    for sequence in sequences:
        smallest, largest = int(sequence.tokens_N.min()), int(sequence.tokens_N.max())
        if smallest < 0 or (vocabulary is not None and largest >= vocabulary):
            raise ModelError(
                f"token {largest if smallest >= 0 else smallest} is not one of the {vocabulary or 'ids'} that {name} "
                "knows: its tokenizer belongs to another model."
            )


def _checked(result: object, sequence: ScoringSequence, name: str) -> FloatArray:
    """Return a result of a model as an array; ModelError if it does not hold log-probabilities of the targets."""
    try:
        with np.errstate(over="ignore"):
            log_probs_P: FloatArray = np.asarray(result, dtype=np.float32)
    except (TypeError, ValueError):
        raise ModelError(f"{name} returned {type(result).__name__} instead of log-probabilities.") from None
    targets = len(sequence.targets_P)
    if log_probs_P.shape != (targets,):
        raise ModelError(f"{name} returned log-probabilities of shape {log_probs_P.shape} for {targets:,} targets.")
    if np.isnan(log_probs_P).any():
        raise ModelError(f"{name} returned log-probabilities that are not numbers.")
    if (log_probs_P > _ABOVE_ZERO).any():
        raise ModelError(f"{name} returned a log-probability of {log_probs_P.max():g}; none can be above 0.")
    return log_probs_P


class SharedCache:
    """A cache for scoring and writing, so that a prompt that is continued and scored is read once, if the model can."""

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

    def score(self, sequences: Sequence[ScoringSequence]) -> Iterable[FloatArray]:
        """Score few sequences; what they share with texts of the previous call is not read again."""
        score = self._model.score if self._apart else getattr(self.continuations, "score", self._model.score)
        scored: Iterable[FloatArray] = score(sequences)
        return scored


def common_prefix_length(text: IntArray, other: IntArray) -> int:
    """Return the length of the common prefix of two texts (int64)."""
    shortest = min(len(text), len(other))
    differ = np.flatnonzero(text[:shortest] != other[:shortest])
    return int(differ[0]) if len(differ) else shortest

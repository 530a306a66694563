"""The scoring engine: requests in, log-probabilities of their targets out, with only the work that is needed.

- Requests whose tokens are a prefix of another's, or equal, are read off one forward pass. In blocked windows these are
  all strides of a block that read the same document. The one exception, LongRoPE, is neither merged nor padded.
- Passes are batched by length and shared out among the copies of the model (`ralm.lm.local.replica`), which score them.
- What a journal knows is not scored again.

Works on token ids; knows nothing of text, plans or passages.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, TypeAlias

import numpy as np

from ralm.errors import ModelError
from ralm.lm.journal import Journal, request_key
from ralm.lm.local.replica import Pass, Reading, Replica
from ralm.progress import progress_bar
from ralm.records import FloatArray, IntArray, Request

TOKENS_AT_ONCE: Final = 1 << 22
"""Tokens of the requests among which prefixes are looked for; they are copied, so not those of a whole plan at once."""


@dataclass(frozen=True, slots=True, eq=False)
class _Sequence:
    """Tokens that are read once, and the requests that are read off them."""

    tokens: IntArray
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    """For each request its number, and where in `tokens` its targets begin and end."""

    def scoring_pass(self) -> Pass:
        """The pass that scores every position whose next token is a target of some request."""
        positions_P = np.unique(np.concatenate([np.arange(begin - 1, end - 1) for _, begin, end in self.spans]))
        return Pass(self.tokens, positions_P, np.empty(len(positions_P), dtype=np.float32))


_Batch: TypeAlias = Sequence[tuple[_Sequence, Pass]]
_Started: TypeAlias = tuple[_Batch, list[Reading]]


class Engine:
    """Scores requests with one model, of which there may be several copies."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        first = replicas[0].logits
        self._name, self._vocabulary = first.name, first.vocabulary
        self._by_length = bool(lengths_read_apart(first.model.config))

    def score(
        self, requests: Iterable[Request], total: int | None = None, journal: Journal | None = None
    ) -> Iterator[FloatArray]:
        """For each request, in order, the natural log-probability (float32) of each of its targets.

        Requests are taken, and results given, some millions of tokens at a time: neither need be held as a whole.
        Raises ModelError where a token is not of the model's vocabulary, one sequence alone is too much for the device,
        or the model gives no numbers.
        """
        with progress_bar("Scoring", total=total) as advance:
            for some in _chunks(requests, TOKENS_AT_ONCE):
                yield from self._score(some, journal, advance)

    def _score(
        self, requests: Sequence[Request], journal: Journal | None, advance: Callable[[int], None]
    ) -> list[FloatArray]:
        keys = [request_key(request) for request in requests] if journal is not None else []
        known = [journal.get(key) for key in keys] if journal is not None else [None] * len(requests)
        scored = [np.empty(0, dtype=np.float32) if found is None else found for found in known]
        left = [number for number, found in enumerate(known) if found is None]
        advance(len(requests) - len(left))
        sequences = _merge(requests, left, prefixes=not self._by_length)
        _check_vocabulary(sequences, self._vocabulary, self._name)

        def keep(batch: _Batch) -> None:
            """Read the requests of finished passes off them."""
            numbers = []
            for sequence, one in batch:
                for number, begin, end in sequence.spans:
                    first = int(np.searchsorted(one.positions_P, begin - 1))
                    scored[number] = one.log_probs_P[first : first + end - begin]
                    numbers.append(number)
            if journal is not None:
                journal.add((keys[number], scored[number]) for number in numbers)
            advance(len(numbers))

        longest_first = sorted(sequences, key=lambda sequence: -len(sequence.tokens))
        self._share_out([(sequence, sequence.scoring_pass()) for sequence in longest_first], keep)
        return scored

    def _share_out(self, work: _Batch, keep: Callable[[_Batch], None]) -> None:
        """Have every replica take batches until there are none, and keep what is finished, one at a time."""
        lock = Lock()
        batches = self._batches(work)

        def take() -> _Batch | None:
            with lock:
                return next(batches, None)

        def serve(replica: Replica) -> None:
            """Read batch after batch; a GPU starts one before the one before is fetched, so that it never waits."""
            before: _Started | None = None
            while batch := take():
                started: _Started | None = (batch, replica.start([one for _, one in batch]))
                if replica.overlaps:
                    started, before = before, started
                finish(started)
            finish(before)

        def finish(started: _Started | None) -> None:
            if started is not None:
                batch, readings = started
                for reading in readings:
                    reading.finish()
                with lock:
                    keep(batch)

        if len(self._replicas) == 1:
            serve(self._replicas[0])
        else:
            with ThreadPoolExecutor(max_workers=len(self._replicas)) as pool:
                list(pool.map(serve, self._replicas))

    def _batches(self, work: _Batch) -> Iterator[_Batch]:
        """Passes in order, the longest first, as many at a time as may be padded to the first and read together."""
        batch: list[tuple[_Sequence, Pass]] = []
        for sequence, one in work:
            if batch and not self._fits([other for _, other in batch], one):
                yield batch
                batch = []
            batch.append((sequence, one))
        if batch:
            yield batch

    def _fits(self, batch: Sequence[Pass], one: Pass) -> bool:
        same_length = len(one) == len(batch[0])
        return (same_length or not self._by_length) and all(replica.fits(batch, one) for replica in self._replicas)


def lengths_read_apart(config: Any) -> list[int]:
    """The lengths up to which, and beyond which, a model reads all tokens of a text in different ways; mostly none.

    So it is with LongRoPE (Phi-3), which takes other frequencies for all positions once the input is long: what it
    makes of a token depends on how many come after it.
    """
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    return [kind["original_max_position_embeddings"] for kind in kinds if kind.get("rope_type") == "longrope"]


def _chunks(requests: Iterable[Request], tokens: int) -> Iterator[list[Request]]:
    """Requests in order, some at a time: as many as have about so many tokens."""
    some: list[Request] = []
    read = 0
    for request in requests:
        some.append(request)
        read += len(request)
        if read >= tokens:
            yield some
            some, read = [], 0
    if some:
        yield some


def _merge(requests: Sequence[Request], numbers: Iterable[int], *, prefixes: bool) -> list[_Sequence]:
    """The distinct token sequences of the numbered requests; with `prefixes`, without prefixes of others.

    In lexicographic order a sequence stands before all that begin with it, and nothing else stands between them: so
    each need be compared with its successor alone, from the last to the first.
    """
    spelt = {number: _spelt(requests[number]) for number in numbers}
    sequences: list[_Sequence] = []
    longest = b""
    for number in sorted(spelt, key=spelt.__getitem__, reverse=True):
        tokens, request = spelt[number], requests[number]
        if not (longest.startswith(tokens) if prefixes else longest == tokens):
            sequences.append(_Sequence(tokens=np.frombuffer(tokens, dtype=">i4").astype(np.int64)))
            longest = tokens
        sequences[-1].spans.append((number, len(request) - len(request.targets), len(request)))
    return sequences


def _spelt(request: Request) -> bytes:
    """The tokens of a request as bytes that sort as the tokens do."""
    return b"".join(part.astype(">i4").tobytes() for part in (request.document, request.context, request.targets))


def _check_vocabulary(sequences: Sequence[_Sequence], vocabulary: int, name: str) -> None:
    for sequence in sequences:
        least, most = int(sequence.tokens.min()), int(sequence.tokens.max())
        if least < 0 or most >= vocabulary:
            raise ModelError(
                f"token {most if least >= 0 else least} is not of the {vocabulary} that {name} knows: "
                "its tokenizer belongs to another model."
            )

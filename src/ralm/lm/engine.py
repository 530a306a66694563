"""The scoring engine: requests in, log-probabilities of their targets out, with only the work that is needed.

- Logits are computed at target positions alone (`ralm.lm.head`), and never more of them at once than fit.
- Requests whose tokens are a prefix of another's, or equal, are read off one forward pass. In blocked windows these are
  all strides of a block that read the same document.
- Sequences are batched by length and padded on the right: with a causal model nothing to the left can change, whatever
  the family does with positions. The one exception, LongRoPE, is neither padded nor merged.
- A GPU that runs out of memory gets half as much at a time from then on.

Works on token ids and one transformers model; knows nothing of text, plans or passages.
Shapes: B sequences of a batch, N tokens, P positions whose next token is a target, C positions of a chunk,
V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch

from ralm.errors import ModelError
from ralm.lm.head import ChosenLogits
from ralm.progress import progress_bar
from ralm.records import FloatArray, IntArray, Request

TOKENS_AT_ONCE: Final = 1 << 22
"""Tokens of the requests among which prefixes are looked for; they are copied, so not those of a whole plan at once."""
TOKENS_A_BATCH: Final = {"cpu": 1, "cuda": 65_536}
"""Tokens of a batch, padding included. On a CPU a sequence at a time: batching adds nothing but padding there."""
LOGITS_A_BATCH: Final = {"cpu": 1 << 26, "cuda": 1 << 29}
"""Logits of one forward pass, held in the model's number format (256 MiB in float32, 1 GiB in bfloat16)."""
LOGITS_A_CHUNK: Final = 1 << 23
"""Logits that are turned into float32 log-probabilities at once (32 MiB)."""


@dataclass(frozen=True, slots=True, eq=False)
class _Sequence:
    """Tokens that are read once, and the requests that are read off them."""

    tokens: IntArray
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    """For each request its number, and where in `tokens` its targets begin and end."""

    def positions(self) -> IntArray:
        """The positions (int64, ascending) whose next token is a target of some request."""
        return np.unique(np.concatenate([np.arange(begin - 1, end - 1) for _, begin, end in self.spans]))


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """A sequence to read, and those of its positions (P of them) that are scored in this pass: most often all."""

    sequence: _Sequence
    positions_P: IntArray
    log_probs_P: FloatArray
    """Where the results go: the part for these positions of those of the whole sequence."""

    def __len__(self) -> int:
        return len(self.sequence.tokens) - 1

    def halves(self) -> list["_Pass"]:
        """Two passes over the same tokens, with half of the positions each."""
        middle = len(self.positions_P) // 2
        parts = (slice(None, middle), slice(middle, None))
        return [_Pass(self.sequence, self.positions_P[part], self.log_probs_P[part]) for part in parts]


class Engine:
    """Scores requests with one model. It remembers how much its device could take at once."""

    def __init__(self, logits: ChosenLogits) -> None:
        kind = logits.device.type
        self._logits = logits
        self._tokens = TOKENS_A_BATCH.get(kind, TOKENS_A_BATCH["cpu"])
        self._positions = max(1, LOGITS_A_BATCH.get(kind, LOGITS_A_BATCH["cpu"]) // logits.vocabulary)
        self._by_length = reads_by_length(logits.model.config)

    def score(self, requests: Iterable[Request], total: int | None = None) -> Iterator[FloatArray]:
        """For each request, in order, the natural log-probability (float32) of each of its targets.

        Requests are taken, and results given, some millions of tokens at a time: neither need be held as a whole.
        Raises ModelError where a token is not of the model's vocabulary, one sequence alone is too much for the device,
        or the model gives no numbers.
        """
        with progress_bar("Scoring", total=total) as advance:
            for some in _chunks(requests, TOKENS_AT_ONCE):
                yield from self._score(some, advance)

    def _score(self, requests: Sequence[Request], advance: Callable[[int], None]) -> list[FloatArray]:
        sequences = _merge(requests, prefixes=not self._by_length)
        _check_vocabulary(sequences, self._logits)
        scored = [np.empty(len(request.targets), dtype=np.float32) for request in requests]
        passes: list[_Pass] = []
        for sequence in sorted(sequences, key=lambda sequence: -len(sequence.tokens)):
            positions_P = sequence.positions()
            passes.append(_Pass(sequence, positions_P, np.empty(len(positions_P), dtype=np.float32)))
        for batch in self._batches(passes):
            self._run(batch)
            advance(sum(len(one.sequence.spans) for one in batch))
        for one in passes:
            for number, begin, end in one.sequence.spans:
                first = int(np.searchsorted(one.positions_P, begin - 1))
                scored[number] = one.log_probs_P[first : first + end - begin]
        return scored

    def _batches(self, passes: list[_Pass]) -> Iterator[list[_Pass]]:
        """Passes in order, the longest first, as many at a time as may be padded to the first and read together."""
        batch: list[_Pass] = []
        for one in passes:
            if batch and not self._fits(batch, one):
                yield batch
                batch = []
            batch.append(one)
        if batch:
            yield batch

    def _fits(self, batch: list[_Pass], one: _Pass) -> bool:
        padded = (len(batch) + 1) * len(batch[0])
        positions = sum(len(other.positions_P) for other in batch) + len(one.positions_P)
        same_length = len(one) == len(batch[0])
        return padded <= self._tokens and positions <= self._positions and (same_length or not self._by_length)

    def _run(self, batch: list[_Pass]) -> None:
        """Score a batch, in smaller parts where it is too much."""
        if len(batch) == 1 and len(batch[0].positions_P) > self._positions:
            parts = [[half] for half in batch[0].halves()]
        elif self._read(batch):
            return
        else:
            parts = self._after_running_out(batch)
        for part in parts:
            self._run(part)

    def _read(self, batch: list[_Pass]) -> bool:
        """Score a batch; False where the device ran out of memory, and what it held has been let go."""
        try:
            log_probs_P = self._next_token_log_probs(batch)
        except torch.OutOfMemoryError:
            return False
        begin = 0
        for one in batch:
            one.log_probs_P[:] = log_probs_P[begin : (begin := begin + len(one.positions_P))]
        return True

    def _after_running_out(self, batch: list[_Pass]) -> list[list[_Pass]]:
        """The batch in two, after halving what is read at once from now on."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if len(batch) > 1:
            middle = len(batch) // 2
            self._tokens = min(self._tokens, middle * len(batch[0]))
            return [batch[:middle], batch[middle:]]
        if len(batch[0].positions_P) > 1:
            self._positions = max(1, len(batch[0].positions_P) // 2)
            return [[half] for half in batch[0].halves()]
        raise ModelError(
            f"{self._logits.name} runs out of memory on {self._logits.device} with one sequence of {len(batch[0])} "
            "tokens: lower --max-length, use --dtype bfloat16, or spread the model with --device map."
        )

    @torch.inference_mode()
    def _next_token_log_probs(self, batch: list[_Pass]) -> FloatArray:
        """The log-probability (float32, P) of the token after each position of each pass, from one forward pass."""
        input_BN = torch.zeros((len(batch), max(len(one) for one in batch)), dtype=torch.long)
        for ids_N, one in zip(input_BN, batch, strict=True):
            ids_N[: len(one)] = torch.from_numpy(one.sequence.tokens[:-1])
        row_P = np.repeat(np.arange(len(batch)), [len(one.positions_P) for one in batch])
        position_P = np.concatenate([one.positions_P for one in batch])
        target_P = np.concatenate([one.sequence.tokens[one.positions_P + 1] for one in batch])
        rows, positions, targets = (torch.from_numpy(index) for index in (row_P, position_P, target_P))
        logits_PV, _ = self._logits(input_BN, rows, positions, use_cache=False)
        log_probs_P = _log_probs(logits_PV, targets.to(logits_PV.device))
        self._logits.check_numbers(log_probs_P)
        return log_probs_P.cpu().numpy()


def reads_by_length(config: Any) -> bool:
    """Whether what a model makes of a token depends on how many come after it.

    So it is with LongRoPE (Phi-3), which takes other frequencies for all positions once the input is long.
    """
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    return any(kind.get("rope_type") == "longrope" for kind in kinds)


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


def _merge(requests: Sequence[Request], *, prefixes: bool) -> list[_Sequence]:
    """The distinct token sequences of the requests; with `prefixes`, without those that are a prefix of another.

    In lexicographic order a sequence stands before all that begin with it, and nothing else stands between them: so
    each need be compared with its successor alone, from the last to the first.
    """
    keys = [_key(request) for request in requests]
    sequences: list[_Sequence] = []
    longest = b""
    for number in sorted(range(len(requests)), key=keys.__getitem__, reverse=True):
        key, request = keys[number], requests[number]
        if not (longest.startswith(key) if prefixes else longest == key):
            sequences.append(_Sequence(tokens=np.frombuffer(key, dtype=">i4").astype(np.int64)))
            longest = key
        sequences[-1].spans.append((number, len(request) - len(request.targets), len(request)))
    return sequences


def _key(request: Request) -> bytes:
    """The tokens of a request as bytes that sort as the tokens do."""
    return b"".join(part.astype(">i4").tobytes() for part in (request.document, request.context, request.targets))


def _check_vocabulary(sequences: Sequence[_Sequence], logits: ChosenLogits) -> None:
    for sequence in sequences:
        least, most = int(sequence.tokens.min()), int(sequence.tokens.max())
        if least < 0 or most >= logits.vocabulary:
            raise ModelError(
                f"token {most if least >= 0 else least} is not of the {logits.vocabulary} that {logits.name} knows: "
                "its tokenizer belongs to another model."
            )


def _log_probs(logits_PV: torch.Tensor, targets_P: torch.Tensor) -> torch.Tensor:
    """The log-softmax (float32) at the targets, a chunk of positions at a time."""
    rows = max(1, LOGITS_A_CHUNK // logits_PV.shape[1])
    parts = []
    for first in range(0, len(targets_P), rows):
        logits_CV = logits_PV[first : first + rows].float()
        targets_C1 = targets_P[first : first + rows, None]
        parts.append(logits_CV.gather(-1, targets_C1)[:, 0] - logits_CV.logsumexp(-1))
    return torch.cat(parts)

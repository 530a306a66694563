"""Given endings of contexts: how likely they are after their fronts, and whether greedy decoding would write them.

    p(y | x) = sum over fronts d of  weight_d  p(y | [d; x])             (REPLUG, Eq. 2)

With one front this is In-Context RALM (Eq. 3). Works on token ids; knows nothing of retrieval. Shapes: K fronts, T
targets, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ralm.errors import UsageError
from ralm.lm.scoring import Scorer
from ralm.protocols import Continuations, WritingModel
from ralm.reading.bounds import bounds_of
from ralm.reading.ensemble import mixture
from ralm.records import DoubleArray, FloatArray, Front, IntArray, NextTokens, Request

_TEXTS_AT_ONCE: Final = 32
"""Texts of which the next token is predicted together."""


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """An ending as it is read: a request for each of its K fronts, and the logarithms of their weights (float64, K).

    `dropped` is how many tokens of the context the longest front pushed out.
    """

    requests: Sequence[Request]
    log_weights_K: DoubleArray
    dropped: int

    @property
    def targets(self) -> IntArray:
        """The token ids of the ending."""
        return self.requests[0].targets

    @classmethod
    def after(
        cls, fronts: Sequence[Front], context: IntArray, targets: IntArray, max_length: int, prefix: int | None
    ) -> "Ending":
        """The ending `targets` (int64, not empty) of a context (int64) that stands behind each of the fronts.

        Of a context that is too long for a model that reads `max_length` tokens, the oldest tokens are dropped, never
        those of a front. If nothing stands before the targets, the token `prefix` does. Raises UsageError if a front
        and the targets do not fit, or if there is no `prefix` and one is needed.
        """
        rooms = [max_length + 1 - len(targets) - len(front.tokens) for front in fronts]  # the last target is not read
        begins = [max(0, len(context) - room) for room in rooms]
        requests = []
        for front, room, begin in zip(fronts, rooms, begins, strict=True):
            before = context if len(context) + len(front.tokens) else _prefix(prefix)
            if room < 0 or room + len(front.tokens) < 1:
                raise UsageError(
                    f"an ending of {len(targets)} tokens and the {len(front.tokens)} in front of it do not fit "
                    f"into `max_length` {max_length}: lower `document_tokens` or raise `max_length`."
                )
            requests.append(Request(document=front.tokens, context=before[begin:], targets=targets))
        return cls(requests, np.array([front.log_weight for front in fronts], dtype=np.float64), max(begins))


def _prefix(token: int | None) -> IntArray:
    if token is None:
        raise UsageError("nothing stands before an ending, and the tokenizer has neither a BOS nor an EOS.")
    return np.array([token], dtype=np.int64)


def ending_log_probs(endings: Sequence[Ending], scorer: Scorer) -> list[FloatArray]:
    """The natural log-probability (float32, T) of each target of each ending."""
    scored = iter(scorer.log_probs([request for one in endings for request in one.requests]))
    return [mixture(np.stack([next(scored) for _ in one.requests]), one.log_weights_K) for one in endings]


def are_greedy(endings: Sequence[Ending], model: WritingModel) -> list[bool]:
    """Whether each ending is what greedy decoding writes: all its targets are the likeliest tokens.

    An ending is read up to its first target that is not. Those with the same context share its reading. Raises
    UsageError if the model lists only its likeliest tokens, and they do not decide.
    """
    reader = model.continuations()
    return [greedy for group in _groups(endings) for greedy in _greedy(group, reader)]


def _groups(endings: Sequence[Ending]) -> Iterator[Sequence[Ending]]:
    """Endings in order, of about `_TEXTS_AT_ONCE` texts together."""
    begin, texts = 0, 0
    for number, one in enumerate(endings):
        if number > begin and texts + len(one.requests) > _TEXTS_AT_ONCE:
            yield endings[begin:number]
            begin, texts = number, 0
        texts += len(one.requests)
    if begin < len(endings):
        yield endings[begin:]


def _greedy(group: Sequence[Ending], reader: Continuations) -> list[bool]:
    held = [True] * len(group)
    for place in range(max(len(one.targets) for one in group)):
        going_on = [number for number, one in enumerate(group) if held[number] and place < len(one.targets)]
        if not going_on:
            break
        likeliest = _likeliest([group[number] for number in going_on], place, reader)
        for number, token in zip(going_on, likeliest, strict=True):
            held[number] = token == int(group[number].targets[place])
    return held


def _likeliest(group: Sequence[Ending], place: int, reader: Continuations) -> list[int]:
    """The likeliest token of each ending in the place of one of its targets."""
    texts_K = [[_text(request, place) for request in one.requests] for one in group]
    different = {text.tobytes(): text for texts in texts_K for text in texts}
    given = reader.next_tokens([*different.values()])
    rows = {text: row for row, text in enumerate(different)}
    return [
        _likeliest_of(given.of([rows[text.tobytes()] for text in texts]), one.log_weights_K)
        for one, texts in zip(group, texts_K, strict=True)
    ]


def _text(request: Request, place: int) -> IntArray:
    return np.concatenate([request.document, request.context, request.targets[:place]])


def _likeliest_of(given: NextTokens, log_weights_K: DoubleArray) -> int:
    if given.tokens_BC is None:
        return int(mixture(given.log_probs_BC, log_weights_K).argmax())
    bounds = bounds_of(given, log_weights_K)
    if not bounds.certified:
        raise UsageError(
            f"the model lists only its {given.tokens_BC.shape[1]} likeliest next tokens, which does not decide the "
            f"likeliest of the average over {len(log_weights_K)} passages: read one passage."
        )
    return int(bounds.tokens_Y[bounds.best])

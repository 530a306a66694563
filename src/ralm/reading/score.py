"""Scores texts: from the hits of each stride to the log-probability of each token, in the mixture of REPLUG, Eq. 2.

With one prompt prefix a row this is In-Context RALM, without passages the plain model. ARCHITECTURE.md lists the files
that `ralm eval` goes through.

Letters of shapes: R rows, K prompt prefixes of a row, T targets.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ralm.errors import UsageError
from ralm.lm.scoring import Scorer, SharedCache, groups_that_fit
from ralm.protocols import Continuations, LanguageModel, WritingModel, traits_of
from ralm.reading.mixture import mix, shares
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.reading.plan import rows_with_targets, stride_request
from ralm.reading.rows import StrideRows
from ralm.reading.sampling import draw_tokens
from ralm.reading.tokens import PreparedText
from ralm.records import (
    DoubleArray,
    Draw,
    FloatArray,
    Hits,
    IntArray,
    Passages,
    Provenance,
    Readings,
    Request,
    ScoredTokens,
)


def score_text(
    prepared: PreparedText,
    model: LanguageModel,
    hits: Hits | None = None,
    passages: Passages = (),
    parts: Parts = IN_CONTEXT,
) -> ScoredTokens:
    """Score every target, each row read with its hits as the parts say; without `hits` no passage is read."""
    plan, scorer = prepared.plan, Scorer.of(model)
    rows, readings_R = rows_and_readings(prepared, scorer, hits, passages, parts)
    pairs = [*zip(rows_with_targets(plan), readings_R, strict=True)]
    prefixes = [(row, prefix, parts.evidence * (len(readings) > 1)) for row, readings in pairs for prefix in readings]
    ranked = [None if before else rows.ranked(row, prefix) for row, prefix, before in prefixes]
    new = [
        stride_request(prepared.tokens, plan, row, prefix.tokens, before)
        for (row, prefix, before), log_probs_N in zip(prefixes, ranked, strict=True)
        if log_probs_N is None
    ]
    answers = iter(scorer.log_probs(new))
    scored = iter([next(answers) if log_probs_N is None else log_probs_N for log_probs_N in ranked])
    log_probs: list[FloatArray] = []
    sources: list[tuple[IntArray, FloatArray]] = []
    for row, readings in pairs:
        log_probs_KN = np.stack([next(scored) for _ in readings])
        targets = int(plan.end_R[row] - plan.target_begin_R[row])
        log_probs_T, shares_TK = mixed(parts, readings, log_probs_KN, targets)
        log_probs.append(log_probs_T)
        passages_K = readings.passages_K
        sources += [(passages_K, shares_K) for shares_K in shares_TK]
    positions_T = plan.positions_T
    return ScoredTokens(
        positions_T=positions_T,
        tokens_T=prepared.tokens[positions_T],
        log_probs_T=np.concatenate(log_probs).astype(np.float32, copy=False),
        provenance=Provenance.of_rows(sources),
    )


def mixed(parts: Parts, readings: Readings, log_probs_KN: FloatArray, targets: int) -> tuple[FloatArray, FloatArray]:
    """Return the log-probabilities (T) of the last T of N tokens of a row, and the share (T x K) of each reading."""
    log_probs_KT, log_weights_KT = log_probs_KN[:, -targets:], parts.log_weights(readings, log_probs_KN, targets)
    return mix(log_probs_KT, log_weights_KT).astype(np.float32), shares(log_probs_KT, log_weights_KT).astype(np.float32)


def rows_and_readings(
    prepared: PreparedText,
    model: LanguageModel,
    hits: Hits | None = None,
    passages: Passages = (),
    parts: Parts = IN_CONTEXT,
) -> tuple[StrideRows, list[Readings]]:
    """Return the rows of a text, and the readings of each row that has targets; arguments as for `score_text`."""
    plan, scorer = prepared.plan, Scorer.of(model)
    hits = Hits.none(len(plan), 1) if hits is None else hits
    rows = StrideRows(prepared, scorer.tokenizer, hits, passages, scorer)
    hits = parts.choose(rows, hits, passages)
    readings_R = [parts.readings(hits.of(row), rows.documents) for row in rows_with_targets(plan)]
    evidence = 0 if plan.options.windows == "rolling" else parts.evidence  # rolling windows count their own tokens
    every = (prefix for readings in readings_R for prefix in readings)
    parts.check_room(every, evidence + plan.options.after_document, plan.options.max_length)
    return rows, readings_R


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """An ending of a context: a request for each of K readings, and log-weights for each target (float64, K x T)."""

    readings: Readings
    requests: Sequence[Request]
    log_weights_KT: DoubleArray
    dropped: int
    """Tokens of the context that were pushed out."""
    evidence: int
    """Targets of the requests that are the end of the context."""

    @property
    def targets(self) -> IntArray:
        """Return the token ids of the ending."""
        return self.requests[0].targets[self.evidence :]

    @classmethod
    def after(
        cls,
        readings: Readings,
        context: IntArray,
        targets: IntArray,
        max_length: int,
        first_token: int | None,
        evidence: int = 0,
    ) -> "Ending":
        """Return the ending `targets` after each prompt prefix and as much of the context as fits into `max_length`."""
        contexts, begins = [], []
        for prompt_prefix in readings:
            document, before = prompt_prefix.tokens, context
            room = max_length + 1 - len(targets) - len(document)  # the last target is not read
            if room < 0 or room + len(document) < 1:
                raise UsageError(
                    f"an ending of {len(targets)} tokens and the {len(document)} before it do not fit into "
                    f"`max_length` {max_length}: lower `document_tokens` or raise `max_length`."
                )
            if len(context) + len(document) == 0:
                if first_token is None:
                    raise UsageError(
                        "there is nothing before an ending, and the tokenizer has neither a BOS nor an EOS."
                    )
                before = np.array([first_token], dtype=np.int64)
            begins.append(max(0, len(context) - room))
            contexts.append(before[begins[-1] :])
        pairs = [*zip(readings, contexts, strict=True)]
        scorable = min(len(before) - (len(prefix.tokens) == 0) for prefix, before in pairs)  # not a first token
        evidence = min(evidence, scorable) if len(pairs) > 1 else 0
        requests = [
            Request(prefix.tokens, *np.split(np.append(before, targets), [len(before) - evidence]))
            for prefix, before in pairs
        ]
        log_weights_KT = np.tile(readings.log_weights_K[:, None], len(targets))
        return cls(readings, requests, log_weights_KT, max(begins), evidence)


def read_endings(endings: Sequence[Ending], parts: Parts, model: WritingModel) -> Iterator[tuple[FloatArray, bool]]:
    """Yield the log-probabilities (float32, T) of each ending's targets, and whether greedy decoding would write it."""
    cache = SharedCache(model)
    scorer = Scorer(model, progress=False, cache=cache)
    lengths = [[*map(len, ending.requests)] for ending in endings]
    # so few together that the model still holds them when it is asked for its most likely tokens
    for group in groups_that_fit(lengths, traits_of(model).tokens_at_once):
        weighed, log_probs = score_endings(endings[group.start : group.stop], parts, scorer)
        yield from zip(log_probs, are_greedy(weighed, cache.continuations), strict=True)


def score_endings(endings: Sequence[Ending], parts: Parts, scorer: Scorer) -> tuple[list[Ending], list[FloatArray]]:
    """Return the endings with their weights by evidence, and the log-probabilities (float32, T) of their targets."""
    scored = iter(scorer.log_probs([request for ending in endings for request in ending.requests]))
    weighed, log_probs = [], []
    for ending in endings:
        log_probs_KN = np.stack([next(scored) for _ in ending.requests])
        log_weights_KT = parts.log_weights(ending.readings, log_probs_KN, len(ending.targets))
        weighed.append(replace(ending, log_weights_KT=log_weights_KT))
        log_probs.append(mix(log_probs_KN[:, ending.evidence :], log_weights_KT).astype(np.float32))
    return weighed, log_probs


def are_greedy(endings: Sequence[Ending], continuations: Continuations) -> list[bool]:
    """Return whether greedy decoding would write each ending; UsageError if a model's top tokens do not decide."""
    greedy = [True] * len(endings)
    place, undecided = 0, [*range(len(endings))]
    while undecided:
        best = _best_tokens([endings[number] for number in undecided], place, continuations)
        for number, token in zip(undecided, best, strict=True):
            greedy[number] = token == int(endings[number].targets[place])
        place += 1
        undecided = [number for number in undecided if greedy[number] and place < len(endings[number].targets)]
    return greedy


def _best_tokens(group: Sequence[Ending], place: int, continuations: Continuations) -> list[int]:
    """Return the most likely token of each ending in the place of one of its targets."""
    texts_K = [
        [
            np.concatenate([request.document, request.context, request.targets[: ending.evidence + place]])
            for request in ending.requests
        ]
        for ending in group
    ]
    distinct = {text.tobytes(): text for texts in texts_K for text in texts}
    rows = {text: row for row, text in enumerate(distinct)}
    draws = [
        Draw([rows[text.tobytes()] for text in texts], ending.log_weights_KT[:, place])
        for ending, texts in zip(group, texts_K, strict=True)
    ]
    drawn = draw_tokens(continuations, [*distinct.values()], draws)
    for token, draw in zip(drawn, draws, strict=True):
        if not token.certified:
            raise UsageError(
                "the model lists only its top next tokens, which does not decide the most likely one of the average "
                f"over {len(draw.rows)} passages: read one passage."
            )
    return [token.token for token in drawn]

"""Reading a prepared text: each row after the fronts of its reader, and the average of the predictions.

    p(y | x) = sum over fronts d of  weight_d  p(y | [d; x])              (REPLUG, Eq. 2)

With one front this is In-Context RALM, without passages the plain model. Letters of shapes: R rows, K fronts of a row,
T targets.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ralm.asking import fault_of_hits
from ralm.bounds import check_count
from ralm.errors import ReaderError, RerankerError, UsageError
from ralm.lm.scoring import Scorer
from ralm.pipeline.rows import StrideRows
from ralm.pipeline.texts import PreparedText
from ralm.protocols import Documents, LanguageModel, Reader, Reranker, Rows
from ralm.reading.documents import PassageDocuments
from ralm.reading.ensemble import mixture, posterior
from ralm.reading.in_context import InContext, rows_with_targets, stride_request
from ralm.records import NO_PASSAGE, FloatArray, Front, Hits, IntArray, Passages, Provenance, ScoredTokens

_ROUNDING: Final = 1e-5


def hits_wanted(reader: Reader, reranker: Reranker | None) -> int:
    """How many passages must be retrieved for a row.

    Raises UsageError if a reranker has fewer candidates than the reader reads.
    """
    check_count("hits", reader.hits)
    if reranker is None:
        return reader.hits
    check_count("candidates", reranker.candidates)
    if reranker.candidates < reader.hits:
        raise UsageError(
            f"the reader reads {reader.hits} passages and the reranker chooses from {reranker.candidates} "
            "`candidates`: raise them."
        )
    return reranker.candidates


def read(
    prepared: PreparedText,
    model: LanguageModel,
    hits: Hits | None = None,
    passages: Passages = (),
    reader: Reader | None = None,
    reranker: Reranker | None = None,
) -> ScoredTokens:
    """Score every target, each row read by `reader` with its hits, or with those that `reranker` chooses from them.

    The default reader reads the best passage alone. Without `hits` no passage is read.

    Raises ReaderError or RerankerError if one of them breaks its contract, UsageError if lengths do not fit.
    """
    scorer = Scorer.of(model)
    rows, fronts_R = rows_and_fronts(prepared, scorer, hits, passages, reader, reranker)
    return _scored(prepared, scorer, rows, fronts_R)


def rows_and_fronts(
    prepared: PreparedText,
    model: LanguageModel,
    hits: Hits | None = None,
    passages: Passages = (),
    reader: Reader | None = None,
    reranker: Reranker | None = None,
) -> tuple[StrideRows, list[Sequence[Front]]]:
    """The rows of a text, and the fronts of each row that has targets; arguments and errors are those of `read`."""
    scorer, reader = Scorer.of(model), reader or InContext()
    options = prepared.plan.options
    documents = PassageDocuments.planned(passages, scorer.tokenizer, options)
    hits = Hits.none(len(prepared.plan), 1) if hits is None else hits
    rows = StrideRows(prepared, scorer, documents, hits, passages)
    if reranker is not None:
        hits = chosen(reranker, rows, hits, passages, reader.hits)
    fronts_R = [fronts_of(reader, hits.of(row), documents) for row in rows_with_targets(prepared.plan)]
    check_room(reader, [front for fronts in fronts_R for front in fronts], options.after_document, options.max_length)
    return rows, fronts_R


def chosen(reranker: Reranker, rows: Rows, hits: Hits, passages: Passages, k: int) -> Hits:
    """The hits that a reranker chooses, checked.

    Raises RerankerError if it does not return hits, or returns passages that are not among those of the row.
    """
    hits = hits.first(reranker.candidates)
    best = reranker.choose(rows, hits, passages, k)
    fault = fault_of_hits(best, len(hits), k, None) or _fault_of_choice(best, hits)
    if fault:
        raise RerankerError(f"the reranker {type(reranker).__name__} {fault}; see `Reranker` for what it should give.")
    return Hits(best.numbers_QK.astype(np.int64, copy=False), best.scores_QK.astype(np.float32, copy=False))


def _fault_of_choice(best: Hits, hits: Hits) -> str:
    found_QK = best.numbers_QK != NO_PASSAGE
    among_QK = (best.numbers_QK[:, :, None] == hits.numbers_QK[:, None, :]).any(axis=2)
    foreign_QK = found_QK & ~among_QK
    if foreign_QK.any():
        return f"gives passage {best.numbers_QK[foreign_QK][0]}, which is not among the hits of its row"
    return ""


def fronts_of(reader: Reader, hits: Sequence[tuple[int, float]], documents: Documents) -> Sequence[Front]:
    """The fronts of one row, checked; without hits, the front without a passage.

    Raises ReaderError if the reader does not return fronts of these hits, or the weights do not sum to 1.
    """
    if not hits:
        return [Front(documents[NO_PASSAGE])]
    fronts = reader.fronts(hits, documents)
    if fault := _fault_of_fronts(fronts, hits):
        raise ReaderError(f"the reader {type(reader).__name__} {fault}; see `Reader` for what it should give.")
    return fronts


def _fault_of_fronts(fronts: Sequence[Front], hits: Sequence[tuple[int, float]]) -> str:
    if not isinstance(fronts, Sequence):
        return f"gives {type(fronts).__name__} instead of fronts"
    found = {number for number, _ in hits}
    if faults := [fault for front in fronts if (fault := _fault_of_front(front, found))]:
        return faults[0]
    total = float(np.exp(np.array([front.log_weight for front in fronts], dtype=np.float64)).sum())
    if not abs(total - 1) < _ROUNDING:
        return f"gives {len(fronts)} {'front' if len(fronts) == 1 else 'fronts'} whose weights sum to {total:g}, not 1"
    return ""


def _fault_of_front(front: Front, found: set[int]) -> str:
    if not isinstance(front, Front):
        return f"gives {type(front).__name__} instead of a Front"
    tokens = front.tokens
    if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or tokens.dtype != np.int64:
        return "gives a front whose tokens are not an int64 vector"
    if foreign := [number for number in front.passages if number not in found]:
        return f"gives a front of passage {foreign[0]}, which is not among the hits of its row"
    return ""


def check_room(reader: Reader, fronts: Sequence[Front], after: int, max_length: int) -> None:
    """Raise UsageError if the longest front leaves no room for the `after` tokens that must follow it."""
    longest = max((len(front.tokens) for front in fronts), default=0)
    if longest + after > max_length:
        raise UsageError(
            f"the reader {type(reader).__name__} puts {longest} tokens in front, and the {after} that must follow them "
            f"do not fit into `max_length` {max_length} as well: lower `document_tokens` or raise `max_length`."
        )


def _scored(
    prepared: PreparedText, scorer: Scorer, seen: StrideRows, fronts_R: Sequence[Sequence[Front]]
) -> ScoredTokens:
    """Score the targets of rows after each of their fronts, except those that ranking has scored, and average."""
    plan, rows = prepared.plan, rows_with_targets(prepared.plan)
    readings = [(row, front) for row, fronts in zip(rows, fronts_R, strict=True) for front in fronts]
    known = [seen.ranked(row, front) for row, front in readings]
    requests = [
        stride_request(prepared.tokens, plan, row, front.tokens)
        for (row, front), found in zip(readings, known, strict=True)
        if found is None
    ]
    new = iter(scorer.log_probs(requests))
    scored = iter([next(new) if found is None else found for found in known])
    log_probs: list[FloatArray] = []
    sources: list[tuple[IntArray, FloatArray]] = []
    for fronts in fronts_R:
        log_probs_KT = np.stack([next(scored) for _ in fronts])
        log_weights_K = np.array([front.log_weight for front in fronts], dtype=np.float64)
        passages_K = np.array([front.passage for front in fronts], dtype=np.int64)
        log_probs.append(mixture(log_probs_KT, log_weights_K))
        sources += [(passages_K, posteriors_K) for posteriors_K in posterior(log_probs_KT, log_weights_K)]
    provenance = Provenance.of_rows(sources)
    most_T = provenance.posteriors_TK.argmax(axis=1)
    positions_T = np.arange(plan.target_begin_R[rows[0]], plan.end_R[rows[-1]], dtype=np.int64)
    return ScoredTokens(
        positions_T=positions_T,
        tokens_T=prepared.tokens[positions_T],
        log_probs_T=np.concatenate(log_probs).astype(np.float32, copy=False),
        passages_T=provenance.passages_TK[np.arange(len(most_T)), most_T],
        provenance=provenance,
    )

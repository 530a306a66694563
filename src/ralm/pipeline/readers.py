"""Reading a prepared text: with the passage given for each row, the one that a reranker chooses, or several at once."""

from collections.abc import Sequence

import numpy as np

from ralm.errors import UsageError
from ralm.pipeline.texts import PreparedText
from ralm.protocols import LanguageModel
from ralm.reading.concatenation import ConcatenationOptions, JoinedDocuments
from ralm.reading.in_context import Documents, rows_with_targets, stride_request
from ralm.records import NO_PASSAGE, FloatArray, Hits, IntArray, Passages, ScoredTokens
from ralm.reranking.likelihood import likeliest
from ralm.reranking.options import RerankOptions
from ralm.reranking.random import drawn
from ralm.reranking.ranker import RankedText


def read(
    prepared: PreparedText, model: LanguageModel, chosen_R: IntArray | None = None, passages: Passages = ()
) -> ScoredTokens:
    """Score every target, each row read with the passage chosen for it; without `chosen_R`, with none."""
    plan = prepared.plan
    if chosen_R is None:
        chosen_R = np.full(len(plan), NO_PASSAGE, dtype=np.int64)
    documents = Documents.planned(passages, model.tokenizer, plan.options)
    requests = [
        stride_request(prepared.tokens, plan, row, documents[int(chosen_R[row])]) for row in rows_with_targets(plan)
    ]
    return scored_tokens(prepared, model.log_probs(requests), _by_target(prepared, chosen_R))


def read_best(
    prepared: PreparedText,
    model: LanguageModel,
    hits: Hits,
    passages: Passages,
    options: RerankOptions,
    ranker: LanguageModel | None = None,
) -> ScoredTokens:
    """Score every target read with the candidate that the reranker chooses for its row.

    `ranker` is the model that ranks for `zero-shot`: the reading model itself where there is none. Raises UsageError
    where the tokens to rank by do not fit into the model beside a document.
    """
    match options.method:
        case "none":
            chosen_R = hits.numbers_QK[:, 0]
        case "random":
            chosen_R = drawn(hits, options.seed)
        case "oracle":
            return read_likeliest(prepared, model, hits, passages)
        case "zero-shot" if ranker is None:
            return read_likeliest(prepared, model, hits, passages, options.tokens)
        case "zero-shot":
            chosen_R = _ranked(prepared, ranker, hits, passages, options.tokens)
    return read(prepared, model, chosen_R, passages)


def read_likeliest(
    prepared: PreparedText, model: LanguageModel, hits: Hits, passages: Passages, rank_tokens: int | None = None
) -> ScoredTokens:
    """Score every target read with the candidate under which the last `rank_tokens` of its prefix are likeliest.

    Without `rank_tokens`, the one under which the targets themselves are: the oracle. One pass per candidate both ranks
    it and reads the targets (In-Context RALM, section 6.1 and Figure 7).
    """
    plan = prepared.plan
    if rank_tokens is not None and plan.options.windows == "rolling":
        _check_rolling_rank_tokens(rank_tokens, plan.options.query_tokens)
    elif rank_tokens is not None:
        check_rank_tokens(prepared, rank_tokens, plan.options.max_length)
    documents = Documents.planned(passages, model.tokenizer, plan.options)
    rows = rows_with_targets(plan)
    requests = [
        stride_request(prepared.tokens, plan, row, documents[number], before=rank_tokens or 0)
        for row in rows
        for number in candidates_of(hits, row)
    ]
    log_probs = iter(model.log_probs(requests))
    chosen_R = np.full(len(plan), NO_PASSAGE, dtype=np.int64)
    best: list[FloatArray] = []
    for row in rows:
        candidates = candidates_of(hits, row)
        of_candidates = [next(log_probs) for _ in candidates]
        targets = int(plan.end_R[row] - plan.target_begin_R[row])
        ranked = of_candidates if rank_tokens is None else [of_one[:-targets] for of_one in of_candidates]
        winner = likeliest(ranked)
        chosen_R[row] = candidates[winner]
        best.append(of_candidates[winner][-targets:])
    return scored_tokens(prepared, best, _by_target(prepared, chosen_R))


def read_concatenation(
    prepared: PreparedText, model: LanguageModel, hits: Hits, passages: Passages, options: ConcatenationOptions
) -> ScoredTokens:
    """Score every target with all documents of its row in one context, the best first (In-Context RALM, section 8).

    The passage of a target is the best of its row. Raises UsageError where the documents do not fit into the model.
    """
    plan = prepared.plan
    options.check(plan.options)
    hits = hits.first(options.documents)
    documents = JoinedDocuments(passages, model.tokenizer, plan.options, cut_together=options.cut_together)
    requests = [
        stride_request(prepared.tokens, plan, row, documents[candidates_of(hits, row)])
        for row in rows_with_targets(plan)
    ]
    return scored_tokens(prepared, model.log_probs(requests), _by_target(prepared, hits.numbers_QK[:, 0]))


def check_rank_tokens(prepared: PreparedText, rank_tokens: int, max_length: int) -> None:
    """Raise UsageError where a model cannot read a document, the tokens to rank by, and what comes after them."""
    options = prepared.plan.options
    if options.document_tokens + rank_tokens + options.advance >= max_length:
        raise UsageError(
            f"`document_tokens` {options.document_tokens} and `RerankOptions.tokens` {rank_tokens} do not fit together "
            f"into {max_length} tokens beside the {options.advance} that the window advances at a time: lower one of "
            "them."
        )


def _check_rolling_rank_tokens(rank_tokens: int, query_tokens: int) -> None:
    if rank_tokens > query_tokens:
        raise UsageError(
            f"`RerankOptions.tokens` {rank_tokens} are more than the `query_tokens` {query_tokens} that rolling "
            "windows have before their targets: lower it."
        )


def _ranked(
    prepared: PreparedText, ranker: LanguageModel, hits: Hits, passages: Passages, rank_tokens: int
) -> IntArray:
    """The passage of each row under which another model finds the end of its prefix likeliest (Table 3)."""
    plan = prepared.plan
    max_length = min(plan.options.max_length, ranker.max_length)
    check_rank_tokens(prepared, rank_tokens, max_length)
    text = RankedText.of(prepared.text, ranker.tokenizer, max_length, plan.options.advance)
    documents = Documents.planned(passages, ranker.tokenizer, plan.options)
    chosen_R = hits.numbers_QK[:, 0].copy()
    ends = {row: text.tokens_within(prepared.characters_before(row)) for row in rows_with_targets(plan)}
    contested = [row for row, end in ends.items() if end > 1 and len(hits.of(row)) > 1]
    log_probs = iter(
        ranker.log_probs(
            [
                text.request(ends[row], documents[number], rank_tokens)
                for row in contested
                for number in candidates_of(hits, row)
            ]
        )
    )
    for row in contested:
        candidates = candidates_of(hits, row)
        chosen_R[row] = candidates[likeliest([next(log_probs) for _ in candidates])]
    return chosen_R


def candidates_of(hits: Hits, row: int) -> list[int]:
    """The passages of a row, or `NO_PASSAGE` alone where nothing was found."""
    return [number for number, _ in hits.of(row)] or [NO_PASSAGE]


def scored_tokens(prepared: PreparedText, log_probs: Sequence[FloatArray], passages_T: IntArray) -> ScoredTokens:
    """Line up the log-probabilities of the rows that have targets, and the passages, with the tokens they belong to."""
    rows = rows_with_targets(prepared.plan)
    positions_T = np.arange(prepared.plan.target_begin_R[rows[0]], prepared.plan.end_R[rows[-1]], dtype=np.int64)
    return ScoredTokens(
        positions_T=positions_T,
        tokens_T=prepared.tokens[positions_T],
        log_probs_T=np.concatenate(log_probs).astype(np.float32, copy=False),
        passages_T=passages_T,
    )


def _by_target(prepared: PreparedText, chosen_R: IntArray) -> IntArray:
    """The passage (int64, T) that each target was read with."""
    plan = prepared.plan
    rows = np.array(rows_with_targets(plan), dtype=np.int64)
    return np.repeat(chosen_R[rows], plan.end_R[rows] - plan.target_begin_R[rows])

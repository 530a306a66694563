"""Reading a prepared text with an ensemble: every document alone, and the average of what they predict (REPLUG)."""

from dataclasses import replace
from typing import TypeAlias

import numpy as np

from ralm.lm.scoring import Scorer
from ralm.pipeline.readers import candidates_of, read_best, read_concatenation, scored_tokens
from ralm.pipeline.texts import PreparedText
from ralm.protocols import LanguageModel
from ralm.reading.concatenation import ConcatenationOptions
from ralm.reading.ensemble import EnsembleOptions, document_log_weights, mixture, posterior
from ralm.reading.in_context import Documents, rows_with_targets, stride_request
from ralm.records import NO_PASSAGE, FloatArray, Hits, Passages, Provenance, ScoredTokens
from ralm.reranking.options import RerankOptions

ReaderOptions: TypeAlias = RerankOptions | EnsembleOptions | ConcatenationOptions
"""How the hits of a row are read: the one that a reranker chooses, each alone and averaged, or all in one context."""


def read_hits(
    prepared: PreparedText,
    model: LanguageModel | Scorer,
    hits: Hits,
    passages: Passages,
    reader: ReaderOptions,
    ranker: LanguageModel | Scorer | None = None,
) -> ScoredTokens:
    """Score every target with the hits of its row, read as the options say."""
    match reader:
        case EnsembleOptions():
            return read_ensemble(prepared, model, hits, passages, reader)
        case ConcatenationOptions():
            return read_concatenation(prepared, model, hits, passages, reader)
        case RerankOptions():
            return read_best(prepared, model, hits, passages, reader, ranker)


def read_ensemble(
    prepared: PreparedText,
    model: LanguageModel | Scorer,
    hits: Hits,
    passages: Passages,
    options: EnsembleOptions,
) -> ScoredTokens:
    """Score every target with the documents of its row, each read alone (REPLUG, Eq. 2).

    The passage of a target is the one that gave most of its probability. A row without hits is read without a document.
    """
    plan, scorer = prepared.plan, Scorer.of(model)
    hits = hits.first(options.documents)
    log_weights_QK = document_log_weights(hits, options)
    documents = Documents.planned(passages, scorer.model.tokenizer, plan.options)
    rows = rows_with_targets(plan)
    requests = [
        stride_request(prepared.tokens, plan, row, documents[number])
        for row in rows
        for number in candidates_of(hits, row)
    ]
    scored = iter(scorer.log_probs(requests))
    log_probs: list[FloatArray] = []
    sources = []
    for row in rows:
        numbers = np.array(candidates_of(hits, row), dtype=np.int64)
        log_probs_KT = np.stack([next(scored) for _ in numbers])
        log_weights_K = log_weights_QK[row, : len(numbers)]
        log_probs.append(mixture(log_probs_KT, log_weights_K))
        sources.append((numbers, posterior(log_probs_KT, log_weights_K)))
    provenance = _provenance(sources, options.documents)
    most_T = provenance.posteriors_TK.argmax(axis=1)
    passages_T = provenance.passages_TK[np.arange(len(most_T)), most_T]
    return replace(scored_tokens(prepared, log_probs, passages_T), provenance=provenance)


def _provenance(sources: list[tuple[np.ndarray, FloatArray]], documents: int) -> Provenance:
    """The passages and posteriors of all rows, one below the other."""
    targets = sum(len(posteriors_TK) for _, posteriors_TK in sources)
    passages_TK = np.full((targets, documents), NO_PASSAGE, dtype=np.int64)
    all_posteriors_TK = np.zeros((targets, documents), dtype=np.float32)
    begin = 0
    for numbers, posteriors_TK in sources:
        end, count = begin + len(posteriors_TK), len(numbers)
        passages_TK[begin:end, :count] = numbers
        all_posteriors_TK[begin:end, :count] = posteriors_TK
        begin = end
    return Provenance(passages_TK=passages_TK, posteriors_TK=all_posteriors_TK)

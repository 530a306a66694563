"""Evaluating a text: score it with its passages and, as an optional baseline, without them over the same targets."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import JsonValue

from ralm.asking import check_length
from ralm.evaluation.measures import Measures, measure
from ralm.evaluation.traces import TracedText, gain_as_json, used_passages
from ralm.lm.scoring import Scorer
from ralm.pipeline.reading import hits_wanted, read
from ralm.pipeline.sources import PassageSource
from ralm.pipeline.texts import PreparedText, prepare_text
from ralm.protocols import LanguageModel, Reader, Reranker
from ralm.reading.documents import PassageDocuments
from ralm.reading.in_context import InContext
from ralm.reading.plan import PlanOptions
from ralm.reading.provenance import provenance_of
from ralm.records import Hits, Passages, ScoredTokens


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """The result of reading a text in one way, and how long it took (wall-clock seconds, without retrieval)."""

    scored: ScoredTokens
    measures: Measures
    seconds: float

    def as_dict(self) -> dict[str, JsonValue]:
        """The measures by name, with the seconds."""
        return {**self.measures.as_dict(), "seconds": round(self.seconds, 3)}


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """A text read with its passages (without any if there was no source), and its baseline or None."""

    prepared: PreparedText
    reading: Reading
    baseline: Reading | None
    passages: Passages

    def summary(self, config: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """The measures and their configuration; with a baseline, also its measures and the gain over it."""
        shown = {**self.reading.as_dict(), "config": config}
        if self.baseline is not None:
            shown["baseline"] = self.baseline.as_dict()
            shown["gain"] = gain_as_json(traced(self.prepared, self.reading, self.baseline, self.passages))
        return shown


def evaluate_text(
    text: str,
    model: LanguageModel,
    options: PlanOptions | None = None,
    *,
    source: PassageSource | None = None,
    reranker: Reranker | None = None,
    reader: Reader | None = None,
    limit_tokens: int | None = None,
    baseline: bool = False,
) -> Evaluation:
    """Score a text stride by stride, each read with the passages of `source` (In-Context RALM, section 5; REPLUG).

    `reranker` chooses among the hits (`ZeroShot`, `Oracle`, `RandomChoice`); without one, the retriever's order is
    kept. `reader` decides what is in front: the best passage (`InContext`, the default), each of several alone
    (`Ensemble`) or several together (`Concatenation`). You can write your own of both: see docs/extending.md. `model`
    may be a `Scorer`, so that evaluations share its cache. With `baseline` the same targets are scored without passages
    too.

    Raises UsageError if lengths do not fit into the model, TextError if the text is too short, ModelError if `bos` is
    always and the tokenizer has no BOS.
    """
    scorer, reader = Scorer.of(model), reader or InContext()
    options = options or PlanOptions()
    check_plan(scorer, options)
    options.check_documents(getattr(reader, "joined", 1))
    _check_first(options, scorer, reranker)
    prepared = prepare_text(text, scorer.tokenizer, options, limit_tokens=limit_tokens)
    hits: Hits | None = None
    passages: Passages = ()
    if source is not None:
        hits, passages = source.find(prepared, scorer.tokenizer, hits_wanted(reader, reranker))
    return Evaluation(
        prepared=prepared,
        reading=timed(prepared, lambda: read(prepared, scorer, hits, passages, reader, reranker)),
        baseline=timed(prepared, lambda: read(prepared, model)) if baseline else None,
        passages=passages,
    )


def _check_first(options: PlanOptions, model: LanguageModel, reranker: Reranker | None) -> None:
    """Raise if the special tokens of one of the models cannot come first, before anything is retrieved."""
    ranking: LanguageModel | None = getattr(reranker, "model", None)
    for one in (model, ranking) if ranking is not None else (model,):
        PassageDocuments.planned((), one.tokenizer, options)


def traced(prepared: PreparedText, reading: Reading, baseline: Reading, passages: Passages) -> TracedText:
    """A text that was read with passages and without, as data that shows where its tokens came from."""
    scored = reading.scored
    before, texts = prepared.token_texts(scored.positions_T)
    provenance = provenance_of(scored)
    return TracedText(
        before=before,
        texts=texts,
        log_probs_T=scored.log_probs_T,
        baseline_T=baseline.scored.log_probs_T,
        provenance=provenance,
        passages=used_passages(provenance, passages),
    )


def timed(prepared: PreparedText, read_text: Callable[[], ScoredTokens]) -> Reading:
    """One way of reading a prepared text, measured and timed."""
    begin = time.perf_counter()
    scored = read_text()
    return Reading(scored=scored, measures=measure(prepared, scored), seconds=time.perf_counter() - begin)


def check_plan(model: LanguageModel, options: PlanOptions) -> None:
    """Raise UsageError if a plan cannot be read, or needs a longer context than the model has."""
    options.check_documents(1)
    check_length(model, options.max_length)

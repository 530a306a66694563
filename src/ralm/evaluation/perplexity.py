"""Evaluating a text: score it with its passages, and without them over the same targets when asked."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import JsonValue

from ralm.evaluation.measures import Measures, measure
from ralm.evaluation.traces import TracedText, gain_as_json, used_passages
from ralm.lm.scoring import Scorer
from ralm.pipeline import PassageSource, PreparedText, ReaderOptions, prepare_text, read, read_hits
from ralm.protocols import LanguageModel, check_length
from ralm.reading.concatenation import ConcatenationOptions
from ralm.reading.in_context import Documents
from ralm.reading.plan import PlanOptions
from ralm.reading.provenance import provenance_of
from ralm.records import Passages, ScoredTokens
from ralm.reranking.options import RerankOptions


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What one way of reading made of a text, and how long it took (seconds of wall clock, the model alone)."""

    scored: ScoredTokens
    measures: Measures
    seconds: float

    def as_dict(self) -> dict[str, JsonValue]:
        """The measures by name, with the seconds."""
        return {**self.measures.as_dict(), "seconds": round(self.seconds, 3)}


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """A text read with its passages (or without any, where there was no source), and its baseline where asked."""

    prepared: PreparedText
    reading: Reading
    baseline: Reading | None
    passages: Passages

    def summary(self, config: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """The measures and the configuration that gave them; with a baseline its measures and the gain over it."""
        shown = {**self.reading.as_dict(), "config": config}
        if self.baseline is not None:
            shown["baseline"] = self.baseline.as_dict()
            shown["gain"] = gain_as_json(traced(self.prepared, self.reading, self.baseline, self.passages))
        return shown


def evaluate_text(
    text: str,
    model: LanguageModel | Scorer,
    options: PlanOptions,
    *,
    source: PassageSource | None = None,
    reader: ReaderOptions | None = None,
    ranker: LanguageModel | Scorer | None = None,
    limit_tokens: int | None = None,
    baseline: bool = False,
) -> Evaluation:
    """Score a text stride by stride, each read with the best passage of `source` (In-Context RALM, section 5).

    The best is the first, or what a reranking `reader` chooses (section 6), for zero-shot with the `ranker` given or
    with the model itself. An ensemble as `reader` reads several, each alone, and averages their distributions (REPLUG);
    a concatenation reads several in one context. With `baseline` the same targets are scored without retrieval too.
    Raises UsageError where the plan's length is beyond the model's or the documents beyond the plan's, TextError where
    the text is too short, ModelError where a BOS is to stand first and the tokenizer has none.
    """
    tokenizer = Scorer.of(model).model.tokenizer
    check_plan(Scorer.of(model).model, options)
    for one in (model, ranker) if ranker is not None else (model,):
        Documents.planned(
            (), Scorer.of(one).model.tokenizer, options
        )  # refuses what stands first before anything is retrieved
    if isinstance(reader, ConcatenationOptions):
        reader.check(options)
    prepared = prepare_text(text, tokenizer, options, limit_tokens=limit_tokens)
    passages: Passages = ()
    if source is None:
        reading = timed(prepared, lambda: read(prepared, model))
    else:
        reader = reader or RerankOptions()
        hits, passages = source.find(prepared, tokenizer, reader.hits)
        reading = timed(prepared, lambda: read_hits(prepared, model, hits, passages, reader, ranker))
    return Evaluation(
        prepared=prepared,
        reading=reading,
        baseline=timed(prepared, lambda: read(prepared, model)) if baseline else None,
        passages=passages,
    )


def traced(prepared: PreparedText, reading: Reading, baseline: Reading, passages: Passages) -> TracedText:
    """A text that was read with passages, and without, as what shows where its tokens came from."""
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
    """Raise UsageError where nothing can be read by a plan, or it would ask the model to read more than it can."""
    options.check_documents(1)
    check_length(model, options.max_length)

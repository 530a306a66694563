"""Evaluates a text: scores it with its passages, and without them as a baseline, and computes its perplexities.

    token perplexity = exp(nll / tokens),   word perplexity = exp(nll / words),   bits per byte = nll / ln 2 / bytes

with nll = -log p(x_1 .. x_n), the chain rule over tokens (In-Context RALM, Eq. 1 without passages, Eq. 4 with them).
"""

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Final, Literal

import numpy as np
from pydantic import JsonValue

from ralm.corpus.decontamination import NGRAM, Decontamination
from ralm.corpus.words import bare_words
from ralm.errors import RalmWarning
from ralm.evaluation import SHOWN_TOKENS, report
from ralm.evaluation.intervals import Column, Estimate, Units, UnitTable, compare, stretches
from ralm.lm.scoring import Scorer
from ralm.protocols import LanguageModel
from ralm.reading import provenance, sources
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.reading.plan import PlanOptions, check_plan_before
from ralm.reading.provenance import Contribution
from ralm.reading.score import score_text
from ralm.reading.tokens import PassageDocuments, PreparedText, prepare_text
from ralm.records import NO_PASSAGE, Hits, IntArray, Passage, Passages, Provenance, ScoredTokens
from ralm.validation import check_length, check_scores

COPY: Final = 0.5
"""A passage with a larger share of its runs of 13 words in a text is a copy of a part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingSettings:
    """How a text is read: its plan, the source of passages if it has one, and the parts."""

    plan: PlanOptions
    source: sources.PassageSource | None
    parts: Parts


@dataclass(frozen=True, slots=True)
class Measures:
    """How well a text was predicted: its tokens, words and UTF-8 bytes, and `nll` in nats over all its targets.

    `nll` is -log p of the text by the chain rule (In-Context RALM, Eq. 1). `unknown_tokens` counts the tokens that
    stand for text that the tokenizer does not know, which was not predicted. Perplexities divide by the counts;
    `ralm.reading.plan` says what counts under each semantics.
    """

    tokens: int
    words: int
    bytes: int
    nll: float
    unknown_tokens: int = 0

    @property
    def token_perplexity(self) -> float:
        """exp(nll / tokens)."""
        return _perplexity(self.nll, self.tokens)

    @property
    def word_perplexity(self) -> float:
        """exp(nll / words): comparable between tokenizers, as in the papers' WikiText-103 figures."""
        return _perplexity(self.nll, self.words)

    @property
    def bits_per_byte(self) -> float:
        """The `nll` in bits over the UTF-8 bytes of the text."""
        return self.nll / math.log(2) / self.bytes if self.bytes else math.nan

    def as_dict(self) -> dict[str, float]:
        """Return counts and measures by name."""
        names = ("token_perplexity", "word_perplexity", "bits_per_byte")
        return {**asdict(self), **{name: getattr(self, name) for name in names}}


def _perplexity(nll: float, count: int) -> float:
    """Return exp(nll / count); infinity if that is too large for a float, NaN if `count` is 0."""
    if count == 0:
        return math.nan
    try:
        return math.exp(nll / count)
    except OverflowError:
        return math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class PassagesRead:
    """What targets were read with; `copies` are near duplicates that share more than half of their runs of 13 words."""

    targets: int
    with_passage: int
    passages: int
    near_duplicates: frozenset[int]
    copies: int

    @classmethod
    def of(cls, documents: Sequence[str], provenance: Provenance, passages: Mapping[int, Passage]) -> "PassagesRead":
        """Count the passages that documents were read with."""
        evaluated = overlap_with(tuple(documents))
        overlaps = {number: evaluated.overlap(passage.text) for number, passage in passages.items()}
        return cls(
            targets=len(provenance.passages_TK),
            with_passage=int((provenance.passages_TK != NO_PASSAGE).any(axis=1).sum()),
            passages=len(passages),
            near_duplicates=frozenset(number for number, overlap in overlaps.items() if overlap > 0),
            copies=sum(overlap > COPY for overlap in overlaps.values()),
        )

    def gain_of_near_duplicates(self, contributions: Sequence[Contribution]) -> float:
        """Return what near-duplicates contributed to a gain, in nats."""
        return sum(row.gain for row in contributions if row.passage in self.near_duplicates)

    @property
    def sentences(self) -> list[str]:
        """What was read, in words."""
        read = f"{self.with_passage:,} of {self.targets:,} tokens were read with a passage"
        shared = (
            f"{len(self.near_duplicates):,} of {self.passages:,} passages share {NGRAM} words in a row with the text"
        )
        copied = f"{self.copies:,} of them copy it: the text is in the index; `--decontaminate` leaves it out"
        return [f"{read}; {shared}", *([copied] if self.copies else [])]

    def as_json(self) -> dict[str, JsonValue]:
        """Return the counts."""
        return {**asdict(self), "near_duplicates": len(self.near_duplicates)}


@lru_cache(maxsize=8)
def overlap_with(documents: tuple[str, ...]) -> Decontamination:
    """Find runs of 13 words of documents in passages; none if all documents are shorter."""
    long = [document for document in documents if len(bare_words(document)) >= NGRAM]
    return Decontamination.of(texts=long) if long else Decontamination()


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A text read in one way."""

    scored: ScoredTokens
    measures: Measures
    seconds: float
    unit: Literal["documents", "stretches"]
    unit_T: IntArray

    def as_dict(self) -> dict[str, JsonValue]:
        """Return the measures by name."""
        return {**self.measures.as_dict(), "seconds": round(self.seconds, 3)}

    @property
    def nlls(self) -> Units:
        """The negative log-probability of each unit, over the tokens that count."""
        return Units.of(-self.scored.log_probs_T, self.unit_T).counted_as(self.measures.tokens)

    @property
    def columns(self) -> dict[str, Column]:
        """The measures of each unit, with words and bytes spread evenly over the tokens of the text."""
        nlls = self.nlls
        bits = Units(nlls.sums_U / math.log(2), nlls.counts_U)
        return {
            "token_perplexity": Column(nlls, "perplexity"),
            "word_perplexity": Column(nlls.counted_as(self.measures.words), "perplexity"),
            "bits_per_byte": Column(bits.counted_as(self.measures.bytes), "ratio"),
        }

    def change_from(self, base: "Reading") -> Estimate:
        """Return the relative change of the token perplexity from another reading of the same targets."""
        return compare(self.nlls, base.nlls, "perplexity")


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """A text read with the passages of its source if it has one, and its baseline or None."""

    prepared: PreparedText
    reading: Reading
    baseline: Reading | None
    has_source: bool
    passages: Passages

    @property
    def traced(self) -> provenance.TracedText:
        """The text with the sources and the gain of each token; it needs a baseline."""
        assert self.baseline is not None
        return provenance.TracedText.of(self.prepared, self.reading.scored, self.baseline.scored, self.passages)

    @property
    def read(self) -> PassagesRead:
        """What the text was read with."""
        traced = self.reading.scored.provenance
        return PassagesRead.of(self.prepared.documents, traced, provenance.used_passages(traced, self.passages))

    @property
    def change(self) -> Estimate:
        """The relative change of the token perplexity from that of the baseline, negative if it is lower."""
        assert self.baseline is not None
        return self.reading.change_from(self.baseline)

    @property
    def units(self) -> UnitTable:
        """The measures of documents or stretches, those of the baseline, and the `change`."""
        scored, columns = self.reading.scored, self.reading.columns
        if self.baseline is not None:
            columns["none_token_perplexity"] = Column(self.baseline.nlls, "perplexity")
            columns["change"] = Column(self.reading.nlls, "perplexity", base=self.baseline.nlls)
        targets = np.concatenate([scored.tokens_T, scored.positions_T, self.prepared.document_T])
        identity = hashlib.sha256(targets.astype(np.int64).tobytes()).hexdigest()
        return UnitTable(self.reading.unit, identity, columns)

    def _repr_html_(self) -> str | None:
        """Return the page of `ralm report`, which notebooks show; None without a baseline."""
        if self.baseline is None:
            return None
        perplexities = self.reading.measures.token_perplexity, self.baseline.measures.token_perplexity
        shown = report.Report(text=self.traced, perplexities=perplexities, shown_tokens=SHOWN_TOKENS)
        return report.as_frame(report.render_report(shown))

    def summary(self) -> dict[str, JsonValue]:
        """Return the measures, those of the baseline if there is one, the gain over it, and the change."""
        read = self.read
        shown: dict[str, JsonValue] = {**self.reading.as_dict(), "read": read.as_json()}
        if self.baseline is not None:
            shown["baseline"] = self.baseline.as_dict()
            copied: JsonValue = read.gain_of_near_duplicates(self.traced.contributions)
            shown["gain"] = {**provenance.gain_as_json(self.traced), "near_duplicates": copied}
            shown |= self.change.fields("change")
        return shown


def evaluate_text(
    text: str | Sequence[str],
    model: LanguageModel,
    options: PlanOptions | None = None,
    *,
    source: sources.PassageSource | None = None,
    parts: Parts = IN_CONTEXT,
    limit_tokens: int | None = None,
    baseline: bool = False,
) -> Evaluation:
    """Score a text stride by stride, each read with the passages of `source` (In-Context RALM, section 5; REPLUG).

    Args:
        text: A text, or documents, each read without the others; intervals are over documents then.
        model: The frozen model, or a `Scorer` of it, so that evaluations share its cache.
        options: Stride, windows and lengths in tokens; by default those of In-Context RALM.
        source: Where passages come from; without it, the text is read alone.
        parts: The reranker, the reader and the mixer; by default the best passage is read alone.
        limit_tokens: Score only the first tokens of the text.
        baseline: Score the same targets without passages too.

    Returns:
        The evaluation.

    Raises:
        UsageError: Lengths do not fit into the model, or it does not score given texts.
        TextError: The text is too short.
        ModelError: `bos` is always, and the tokenizer has no BOS.
    """
    scorer, options = Scorer.of(model), options or PlanOptions()
    check_plan(scorer, options)
    options.check_documents(parts.joined)
    parts.check_scoring(scorer, "a score")
    if parts.evidence:
        check_plan_before(options, parts.evidence, "`evidence`")
    PassageDocuments.planned((), scorer.tokenizer, options)  # raises if special tokens cannot come first
    if parts.ranking_model is not None:
        PassageDocuments.planned((), parts.ranking_model.tokenizer, options)
    prepared = prepare_text(text, scorer.tokenizer, options, limit_tokens=limit_tokens)
    hits: Hits | None = None
    passages: Passages = ()
    if source is not None:
        if not prepared.plan.retrieves_R.any():
            warnings.warn(
                f"no token is read with a passage: the {prepared.plan.text_tokens:,} tokens of the text are one "
                f"window, and with {options.semantics} semantics retrieval begins after the first; give a longer text, "
                "a smaller stride, or a smaller max_length.",
                RalmWarning,
                stacklevel=2,
            )
        hits, passages = source.find(prepared, scorer.tokenizer, parts.hits)
        if prepared.plan.retrieves_R.any() and (hits.numbers_QK == NO_PASSAGE).all():
            warnings.warn(
                f"no passage was found for any of {len(prepared.plan):,} strides, so all is read without: give an "
                "index that shares words with the text, or a filter that some documents pass.",
                RalmWarning,
                stacklevel=2,
            )
    return Evaluation(
        prepared=prepared,
        reading=_timed(prepared, lambda: score_text(prepared, scorer, hits, passages, parts)),
        baseline=_timed(prepared, lambda: score_text(prepared, scorer)) if baseline else None,
        has_source=source is not None,
        passages=passages,
    )


def _timed(prepared: PreparedText, score: Callable[[], ScoredTokens]) -> Reading:
    begin = time.perf_counter()
    scored = score()
    seconds = time.perf_counter() - begin
    measures = Measures(
        tokens=prepared.plan.counted_tokens,
        words=sum(map(prepared.plan.count_words, prepared.counted_texts)),
        bytes=sum(len(text.encode()) for text in prepared.counted_texts),
        nll=scored.nll,
        unknown_tokens=prepared.unknown_tokens,
    )
    has_documents = len(prepared.documents) > 1
    return Reading(
        scored=scored,
        measures=measures,
        seconds=seconds,
        unit="documents" if has_documents else "stretches",
        unit_T=prepared.document_T if has_documents else stretches(len(scored)),
    )


def check_plan(model: LanguageModel, options: PlanOptions) -> None:
    """Raise UsageError if a model cannot read a text with this plan."""
    check_scores(model, "a score")
    options.check_documents(1)
    check_length(model, options.max_length)

"""Measures: figures with intervals from the results of finished steps.

A measure reads a `Sample`: sums and counts over units (stretches of a text, or questions), and the statistic of its
figure (`ralm.evaluation.intervals`). So every figure has an interval over units, and two over the same units have a
paired one for their change. A gain is the difference of the log-probabilities of a token with passages and without, in
nats; its runs have a baseline.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ralm.corpus.decontamination import Decontamination
from ralm.evaluation.intervals import Column, Estimate, Units, stretches
from ralm.reading.provenance import TracedText
from ralm.recipes.recipe import Measure
from ralm.records import NO_PASSAGE, DoubleArray
from ralm.retrieval.index import open_index
from ralm.runs.run import RUN_TOKENS, SUMMARY, TEXT_BEFORE, damage_errors, open_run, read_units

TokenClass = Literal["capitalised word", "other word", "rest of a word", "number", "punctuation and space"]
_REMEDY: Final = "remove it and run the recipe again"
_NGRAM: Final = 8
_WORD: Final = re.compile(r"\w+")
_NOTHING: Final = Column(Units(np.zeros(0), np.zeros(0)), "mean")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample(Column):
    """The units of a figure, with a factor such as 100 for percent."""

    factor: float = 1.0

    @property
    def is_loss(self) -> bool:
        """Whether it is a perplexity or bits per byte, where smaller is better and changes are relative."""
        return self.statistic in ("ratio", "perplexity") and self.base is None

    @property
    def estimate(self) -> Estimate:
        """The figure with its interval."""
        return self.figure.times(self.factor)


def sample_of(measure: Measure) -> Sample:
    """Return the figure of a measure with its sums and counts."""
    sample: Sample = globals()[measure.name](*(step.path for step in measure.steps), *measure.options)
    return sample


def measure_of_run(run: Path, column: str, documents: int | None = None) -> Sample:
    """Return a measure of a run, or of one of a sweep over `documents`; shares in percent. It may have no units."""
    run = run if documents is None else run / f"documents-{documents}"
    figure = read_units(run).columns.get(column, _NOTHING)
    return Sample(units=figure.units, statistic=figure.statistic, factor=100 if figure.statistic == "share" else 1)


def perplexity_by_spaces(run: Path) -> Sample:
    """Return the perplexity of a text with as many words as spaces, as in the official code of In-Context RALM."""
    units = read_units(run).columns["token_perplexity"].units
    with damage_errors(run, _REMEDY):
        table = pq.read_table(run / RUN_TOKENS, columns=["text"])
        texts = [table.schema.metadata[TEXT_BEFORE].decode(), *table["text"].to_pylist()]
    return Sample(units=units.counted_as(sum(text.count(" ") for text in texts)), statistic="perplexity")


def relative_gain(run: Path, without: Path) -> Sample:
    """Return how much lower the bits per byte of a run are than those of one without passages, in percent."""
    bits, base = (measure_of_run(path, "bits_per_byte").units for path in (run, without))
    return Sample(units=bits, statistic="ratio", factor=-100, base=base)


def targets_with_passage(run: Path) -> tuple[int, int]:
    """Return how many targets of a run of `ralm eval` were read with a passage, and how many there are."""
    with damage_errors(run, _REMEDY):
        read = json.loads((run / SUMMARY).read_bytes())["read"]
        return read["with_passage"], read["targets"]


def gain_of_class(run: Path, kind: TokenClass) -> Sample:
    """Return the mean gain of the tokens of a class."""
    text = _traced(run)
    classes = [class_of(*pair) for pair in zip(text.texts, ["", *text.texts[:-1]], strict=True)]
    return _mean_over(text.gain_T, np.array(classes) == kind)


@lru_cache(maxsize=4)
def _traced(run: Path) -> TracedText:
    return open_run(run).text


def _mean_over(values_T: DoubleArray, chosen_T: NDArray[np.bool_]) -> Sample:
    """Return the mean of the chosen targets, over stretches of the text."""
    sums_U = over_stretches(values_T * chosen_T).sums_U
    return Sample(units=Units(sums_U, over_stretches(chosen_T.astype(np.float64)).sums_U), statistic="mean")


def over_stretches(values_T: DoubleArray) -> Units:
    """Return the sums of the values of targets over stretches of the text."""
    return Units.of(values_T, stretches(len(values_T)))


def class_of(text: str, before: str) -> TokenClass:
    """Return the class of a token by what it adds to a text; `before` is the text of the token before it."""
    core = text.strip()
    if not any(character.isalnum() for character in core):
        return "punctuation and space"
    if core[:1].isdigit():
        return "number"
    if not text[:1].isspace() and before[-1:].isalnum():
        return "rest of a word"
    return "capitalised word" if core[:1].isupper() else "other word"


def gain_by_frequency(run: Path, index: Path, lowest: float, end: float = math.inf) -> Sample:
    """Return the mean gain of words that stand in `lowest` to `end` of a million passages; stop words are left out."""
    rates_T = _rates(run, index)
    with np.errstate(invalid="ignore"):
        chosen_T = (rates_T >= lowest) & (rates_T < end)
    return _mean_over(_traced(run).gain_T, chosen_T)


@lru_cache(maxsize=4)
def _rates(run: Path, index: Path) -> DoubleArray:
    """Return in how many of a million passages the word of each target stands; NaN for a word without a term."""
    opened = open_index(index)
    words = words_of_tokens(_traced(run).texts)
    passages = {word: opened.bm25.frequency(word) for word in {*words}}
    return np.array([passages[word] for word in words], np.float64) * 1e6 / len(opened.passages)


def words_of_tokens(texts: Sequence[str]) -> list[str]:
    """Return the word of the text that each token is a part of, empty for tokens without one."""
    ends = np.cumsum([len(text) for text in texts])
    words = [""] * len(texts)
    for match in _WORD.finditer("".join(texts)):
        first, last = np.searchsorted(ends, [match.start(), match.end() - 1], side="right").tolist()
        for place in range(first, last + 1):
            words[place] = match[0]
    return words


def gain_below_overlap(run: Path, percent: float) -> Sample:
    """Return by how many percent passages lower the perplexity, if those that overlap the text more count as not read.

    The overlap is the share of the passage's runs of eight words that stand in the text.
    """
    units = over_stretches(-np.where(_overlaps(run) <= percent / 100, _traced(run).gain_T, 0.0))
    return Sample(units=units, statistic="perplexity", factor=-100, base=Units(0 * units.sums_U, units.counts_U))


def share_below_overlap(run: Path, percent: float) -> Sample:
    """Return how many percent of the targets keep their passage, if those that overlap the text more are taken out."""
    kept = over_stretches((_overlaps(run) <= percent / 100).astype(np.float64))
    return Sample(units=kept, statistic="mean", factor=100)


@lru_cache(maxsize=4)
def _overlaps(run: Path) -> DoubleArray:
    """Return the overlap of the passage that each target was read with; 0 without a passage."""
    text = _traced(run)
    evaluated = Decontamination.of(texts=["".join([text.before, *text.texts])], ngram=_NGRAM)
    overlaps = {number: evaluated.overlap(passage.text) for number, passage in text.passages.items()}
    overlaps[NO_PASSAGE] = 0.0
    return np.array([overlaps[number] for number in text.provenance.passages_T.tolist()])

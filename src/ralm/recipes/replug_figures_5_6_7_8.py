"""REPLUG: Figures 5, 6 and 8, retrievers and families of models on WikiText-103; Figure 7 and analyses of the same
question: which tokens gain from passages, and which gains are copies.

A gain is the difference of the log-probabilities of a token in two runs over the same targets, one with passages and
one without, in nats.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

import numpy as np
import pyarrow.parquet as pq

from ralm.corpus.decontamination import Decontamination
from ralm.errors import UsageError
from ralm.recipes.measures import REMEDY, Folders, Measure, Sample, stretches
from ralm.recipes.readings import (
    BM25_SEARCH,
    DENSE_SEARCH,
    NO_FIGURES,
    REPLUG_PLAN,
    REPLUG_SUPERVISION,
    REPLUG_WINDOWS,
    Readings,
    on_wikitext_dev,
    trained_retriever,
    wikipedia,
)
from ralm.recipes.recipe import Cell, Figure, Order, Recipe, Scale, cells_of, orders_of
from ralm.recipes.resources import (
    BERT,
    BLOOM,
    CONTRIEVER,
    DPR,
    DPR_QUESTIONS,
    GPT2,
    OPT,
    WIKITEXT_TEST,
    WIKITEXT_TRAIN,
    Resource,
)
from ralm.recipes.steps import Step, index_step
from ralm.records import DoubleArray
from ralm.retrieval.index import open_index
from ralm.runs.run import PASSAGES, RUN_TOKENS, damage_errors, read_tokens

_COLUMN: Final = "WikiText-103, word perplexity"


def replug_figure_5(scale: Scale) -> Recipe:
    """Five retrievers with GPT-2 L and XL."""
    return _retrievers(
        scale,
        "5",
        "GPT-2 L and XL on WikiText-103 with an ensemble over ten passages of five retrievers.",
        GPT2[2:],
        ("BERT", "DPR", "Contriever", "BM25", "Contriever LSR"),
    )


def replug_figure_6(scale: Scale) -> Recipe:
    """GPT-2, OPT and BLOOM by size."""
    cells, orders = list[Cell](), list[Order]()
    index = index_step(WIKITEXT_TRAIN, encoder=CONTRIEVER)
    for family, models in (("GPT-2", GPT2), ("OPT", OPT), ("BLOOM", BLOOM)):
        readings = _readings(scale, models[0])
        for lm in models:
            measured = {"none": readings.plain(lm), "REPLUG": readings.ensemble(lm, index)}
            cells += cells_of(lm.name, _COLUMN, measured, at=lm.parameters / 1e9, line=family)
            orders += orders_of(lm.name, measured, ("REPLUG", "none"))
    return Recipe(
        name="replug/figure-6",
        paper="REPLUG, Figure 6",
        about=f"GPT-2, OPT and BLOOM on WikiText-103 by their size, without retrieval and with REPLUG. {NO_FIGURES}",
        cells=tuple(cells),
        orders=tuple(orders),
        figure=Figure(kind="lines", over="parameters, billions", logarithmic=True),
        differs=(REPLUG_WINDOWS,),
    )


def replug_figure_8(scale: Scale) -> Recipe:
    """Dense against sparse retrieval, with all sizes of GPT-2."""
    return _retrievers(
        scale,
        "8",
        "GPT-2 on WikiText-103 without retrieval, with Contriever, Contriever LSR and BM25.",
        GPT2,
        ("Contriever", "BM25", "Contriever LSR"),
    )


def _retrievers(scale: Scale, number: str, about: str, models: Sequence[Resource], hows: Sequence[str]) -> Recipe:
    """A cell for each model and retriever, and the orders among retrievers that the paper reports."""
    cells, orders = list[Cell](), list[Order]()
    readings, indexes = _readings(scale, GPT2[0]), _indexes(scale)
    for lm in models:
        ensembles = {
            how: readings.ensemble(lm, indexes[how], retrieval=BM25_SEARCH if how == "BM25" else DENSE_SEARCH)
            for how in hows
        }
        measured = {"none": readings.plain(lm), **ensembles}
        cells += cells_of(lm.label, _COLUMN, measured)
        pairs = (("Contriever", "none"), ("BM25", "Contriever"), ("Contriever LSR", "BM25"))
        orders += orders_of(lm.label, measured, *pairs)
    return Recipe(
        name=f"replug/figure-{number}",
        paper=f"REPLUG, Figure {number}",
        about=f"{about} {NO_FIGURES}",
        cells=tuple(cells),
        orders=tuple(orders),
        figure=Figure(kind="bars", over="retriever"),
        differs=(REPLUG_WINDOWS, REPLUG_SUPERVISION),
    )


def _indexes(scale: Scale) -> dict[str, Step]:
    return {
        "BERT": index_step(WIKITEXT_TRAIN, encoder=BERT),
        "DPR": index_step(WIKITEXT_TRAIN, encoder=DPR, query_encoder=DPR_QUESTIONS),
        "Contriever": index_step(WIKITEXT_TRAIN, encoder=CONTRIEVER),
        "BM25": index_step(WIKITEXT_TRAIN),
        "Contriever LSR": index_step(WIKITEXT_TRAIN, encoder=trained_retriever(scale)),
    }


def _readings(scale: Scale, tokenizer: Resource) -> Readings:
    return Readings(scale=scale, text=WIKITEXT_TEST, tokenizer=tokenizer, plan=REPLUG_PLAN)


TokenClass = Literal["capitalised word", "other word", "rest of a word", "number", "punctuation and space"]
_CLASSES: Final[tuple[TokenClass, ...]] = (
    "capitalised word",
    "other word",
    "rest of a word",
    "number",
    "punctuation and space",
)
_NGRAM: Final = 8
_WORD: Final = re.compile(r"\w+")


def class_of(text: str, before: str) -> TokenClass:
    """The class of a token by what it adds to a text; `before` is the text of the token before it."""
    core = text.strip()
    if not any(character.isalnum() for character in core):
        return "punctuation and space"
    if core[:1].isdigit():
        return "number"
    if not text[:1].isspace() and before[-1:].isalnum():
        return "rest of a word"
    return "capitalised word" if core[:1].isupper() else "other word"


def words_of_tokens(texts: Sequence[str]) -> list[str]:
    """The word of the text that each token is a part of, empty for tokens without one."""
    text = "".join(texts)
    ends = np.cumsum([len(one) for one in texts])
    words = [""] * len(texts)
    for match in _WORD.finditer(text):
        first, last = np.searchsorted(ends, [match.start(), match.end() - 1], side="right").tolist()
        for place in range(first, last + 1):
            words[place] = match[0]
    return words


@dataclass(frozen=True, slots=True)
class _Compared(Measure):
    """A figure of two runs over the same targets: `step` with passages, `without` none."""

    without: Step

    @property
    def steps(self) -> tuple[Step, ...]:
        """Both runs."""
        return (self.step, self.without)

    def gains_T(self, folders: Folders) -> DoubleArray:
        """The gain of each target in nats."""
        return _gains(folders[self.step], folders[self.without])


@lru_cache(maxsize=8)
def _gains(run: Path, without: Path) -> DoubleArray:
    first, second = read_tokens(run), read_tokens(without)
    if not np.array_equal(first.tokens_T, second.tokens_T):
        raise UsageError(f"{run} and {without} are runs over different targets.")
    return first.log_probs_T.astype(np.float64) - second.log_probs_T


def _some(values_T: DoubleArray, chosen_T: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Sample:
    """The mean of some targets, over stretches of the text."""
    whole = stretches(values_T * chosen_T, lambda mean: mean)
    sizes = whole.counts_U
    units_T = np.repeat(np.arange(len(sizes)), sizes)
    counts_U = np.bincount(units_T, chosen_T, minlength=len(sizes)).astype(np.int64)
    there_U = counts_U > 0
    return Sample(whole.sums_U[there_U], counts_U[there_U], lambda mean: mean)


@dataclass(frozen=True, slots=True)
class GainOfClass(_Compared):
    """The mean gain of the tokens of a class."""

    kind: TokenClass

    @property
    def label(self) -> str:
        """Its name in a table."""
        return "gain, nats a token"

    def sample(self, folders: Folders) -> Sample:
        """The gains of these tokens."""
        return _some(self.gains_T(folders), _classes(folders[self.step]) == self.kind)


@lru_cache(maxsize=4)
def _classes(run: Path) -> "np.ndarray[tuple[int], np.dtype[np.str_]]":
    """The class of each target."""
    texts = read_tokens(run).texts
    return np.array([class_of(*pair) for pair in zip(texts, ["", *texts[:-1]], strict=True)])


@dataclass(frozen=True, slots=True)
class GainByFrequency(_Compared):
    """The mean gain of tokens in words that stand in `lowest` to `end` of a million passages; `end` None is no bound.

    `index` is an index for BM25 of the corpus: its terms are counted, so words without a term, such as stop words, are
    left out.
    """

    index: Step
    lowest: float
    end: float | None

    @property
    def steps(self) -> tuple[Step, ...]:
        """Both runs and the index."""
        return (self.step, self.without, self.index)

    @property
    def label(self) -> str:
        """Its name in a table."""
        return "gain, nats a token"

    def sample(self, folders: Folders) -> Sample:
        """The gains of these tokens."""
        rates_T = _rates(folders[self.step], folders[self.index])
        end = np.inf if self.end is None else self.end
        with np.errstate(invalid="ignore"):
            chosen_T = (rates_T >= self.lowest) & (rates_T < end)
        return _some(self.gains_T(folders), chosen_T)


@lru_cache(maxsize=4)
def _rates(run: Path, index: Path) -> DoubleArray:
    """In how many of a million passages the word of each target stands; NaN for a word without a term."""
    opened = open_index(index)
    words = words_of_tokens(read_tokens(run).texts)
    frequency = {word: opened.bm25.frequency(word) for word in {*words}}
    rate = {word: np.nan if found is None else 1e6 * found / len(opened.passages) for word, found in frequency.items()}
    return np.array([rate[word] for word in words])


@dataclass(frozen=True, slots=True)
class GainBelowOverlap(_Compared):
    """By how many percent passages lower the token perplexity, if those that overlap the text more are taken out.

    The overlap of a passage is the share of its runs of eight words that stand in the evaluated text. A target whose
    passage overlaps more than `limit` counts as read without passages. With `share` the figure is how
    many percent of the targets keep their passage.
    """

    limit: float
    share: bool = False

    @property
    def label(self) -> str:
        """Its name in a table."""
        return "targets that keep their passage, %" if self.share else "lower perplexity, %"

    def sample(self, folders: Folders) -> Sample:
        """The gains of targets whose passage stays."""
        overlap_T = _overlaps(folders[self.step])
        kept_T = overlap_T <= self.limit
        if self.share:
            return stretches(kept_T.astype(np.float64), lambda mean: 100 * mean)
        return stretches(np.where(kept_T, self.gains_T(folders), 0.0), lambda mean: -100 * np.expm1(-mean))


@lru_cache(maxsize=4)
def _overlaps(run: Path) -> DoubleArray:
    """For each target, the overlap of the passage that it was read with; 0 without a passage."""
    tokens = read_tokens(run)
    evaluated = Decontamination.of(texts=[tokens.before + "".join(tokens.texts)], ngram=_NGRAM)
    with damage_errors(run, REMEDY):
        passages = pq.read_table(run / PASSAGES, columns=["passage", "text"]).to_pylist()
        read = pq.read_table(run / RUN_TOKENS, columns=["passage"])["passage"].to_pylist()
    overlap = {row["passage"]: evaluated.overlap(row["text"]) for row in passages}
    return np.array([0.0 if number is None else overlap[number] for number in read])


_BOUNDS: Final = (0, 10, 100, 1_000, 10_000, None)
"""Frequencies of words, in a million passages."""
_OVERLAPS: Final = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def replug_figure_7(scale: Scale) -> Recipe:
    """REPLUG's question of which tokens gain, asked of all tokens."""
    readings, lm = Readings(scale=scale, text=WIKITEXT_TEST, tokenizer=GPT2[0], plan=REPLUG_PLAN), GPT2[-1]
    with_ = readings.ensemble(lm, index_step(WIKITEXT_TRAIN, encoder=CONTRIEVER)).step
    without = readings.plain(lm).step
    return Recipe(
        name="replug/figure-7",
        paper="REPLUG, Figure 7",
        about="Which tokens gain from passages: by class, and by how many passages of the corpus have the word. The "
        "paper shows one example, in which rare entities gain most; this asks it of every token.",
        cells=_gain_cells("GPT-2 XL", with_, without, index_step(WIKITEXT_TRAIN)),
        figure=Figure(kind="bars", over="tokens"),
        differs=(REPLUG_WINDOWS, "The figure shows one example; this is a table of all tokens."),
    )


def gain_by_token(scale: Scale) -> Recipe:
    """The same for BM25's first passage every four tokens."""
    readings = on_wikitext_dev(scale)
    with_, without = readings.bm25(GPT2[0]).step, readings.plain(GPT2[0]).step
    return Recipe(
        name="analysis/gain-by-token",
        paper="Analysis: which tokens gain",
        about="Which tokens gain from BM25's first passage: by class, and by how many passages of the corpus have the "
        "word.",
        cells=_gain_cells("GPT-2 S", with_, without, wikipedia()),
        figure=Figure(kind="bars", over="tokens"),
    )


def _gain_cells(model: str, with_: Step, without: Step, index: Step) -> tuple[Cell, ...]:
    measures: dict[str, Measure] = {one: GainOfClass(with_, without, one) for one in _CLASSES}
    for lowest, end in itertools.pairwise(_BOUNDS):
        between = f"{lowest:,} or more" if end is None else f"{lowest:,} to {end:,}"
        how = f"{between} of a million passages have the word"
        measures[how] = GainByFrequency(with_, without, index, lowest or 0, end)
    return tuple(cells_of(model, "gain, nats a token", measures))


def contamination(scale: Scale) -> Recipe:
    """How much of the gain is near-duplicates of the text."""
    readings = on_wikitext_dev(scale)
    with_, without = readings.bm25(GPT2[0]).step, readings.plain(GPT2[0]).step
    columns = {False: "lower token perplexity, %", True: "targets that keep their passage, %"}
    cells = list[Cell]()
    for share, column in columns.items():
        for limit in _OVERLAPS:
            cells += cells_of(
                "GPT-2 S", column, {"BM25": GainBelowOverlap(with_, without, limit, share)}, at=100 * limit
            )
    return Recipe(
        name="analysis/contamination",
        paper="Analysis: contamination curve",
        about="How much of the gain from passages is near-duplicates of the evaluated text. Passages that overlap it "
        "more than a threshold are taken out, and their targets count as read without passages. The overlap is the "
        "share of a passage's runs of eight words that stand in the text.",
        cells=tuple(cells),
        orders=(
            Order(
                better=GainBelowOverlap(with_, without, 1.0),
                worse=GainBelowOverlap(with_, without, 0.0),
                text="all passages gain more than those without any shared run of eight words",
            ),
        ),
        figure=Figure(kind="lines", over="greatest overlap of a passage, %"),
    )

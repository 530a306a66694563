"""Measures: figures with intervals from the results of finished steps.

A measure reads a `Sample`: sums and counts over units (stretches of a text, or questions), and the statistic of its
figure (`ralm.evaluation.intervals`). So every figure has an interval over units, and two over the same units have a
paired one for their change. A gain is the difference of the log-probabilities of a token in two runs over the same
targets, one with passages and one without, in nats.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ralm.answering import multiple_choice, run as answering
from ralm.corpus.decontamination import Decontamination
from ralm.errors import UsageError
from ralm.evaluation.comparison import Column
from ralm.evaluation.intervals import Estimate, Units, stretches
from ralm.recipes.steps import Step
from ralm.records import DoubleArray, IntArray
from ralm.retrieval.index import open_index
from ralm.runs.run import PASSAGES, RUN_KIND, RUN_TOKENS, SUMMARY
from ralm.runs.tables import TEXT_BEFORE, damage_errors
from ralm.storage import manifest, outputs

Per = Literal["token", "word", "space", "byte"]
"""What a perplexity is per: words as WikiText has them, or as many as the text has spaces, as the official code counts
them."""
TokenClass = Literal["capitalised word", "other word", "rest of a word", "number", "punctuation and space"]
_PERPLEXITIES: Final = {
    "token": "token perplexity",
    "word": "word perplexity",
    "space": "word perplexity",
    "byte": "bits per byte",
}
_LABELS: Final = {
    "relative_gain": "lower bits per byte, %",
    "exact_matches": "exact match, %",
    "answer_log_probs": "log-probability of a right token",
    "choice_accuracy": "accuracy, %",
    "gain_of_class": "gain, nats a token",
    "gain_by_frequency": "gain, nats a token",
    "gain_below_overlap": "lower perplexity, %",
    "share_below_overlap": "targets that keep their passage, %",
}
_REMEDY: Final = "remove it and run the recipe again"
_NGRAM: Final = 8
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample(Column):
    """The units of a figure, with a factor such as 100 for percent."""

    factor: float = 1.0

    @property
    def estimate(self) -> Estimate:
        """The figure with its interval."""
        return self.figure.times(self.factor)


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of finished steps: that of the function with this name, of the paths of their results and options."""

    name: str
    steps: tuple[Step, ...]
    options: tuple[Any, ...] = ()

    @property
    def label(self) -> str:
        """What it is called in a table."""
        return _PERPLEXITIES[self.options[0]] if self.name == "perplexity" else _LABELS[self.name]

    @property
    def smaller_is_better(self) -> bool:
        """Whether it is a perplexity."""
        return self.name == "perplexity"

    def sample(self, paths: Mapping[Step, Path]) -> Sample:
        """Return the figure with its sums and counts."""
        sample: Sample = globals()[self.name](*(paths[step] for step in self.steps), *self.options)
        return sample


def perplexity(run: Path, per: Per) -> Sample:
    """Return how well a text was predicted by `ralm eval`; per byte, it is in bits."""
    nll_T, counted = _read_run(run)
    units = over_stretches(nll_T).counted_as(counted[per])
    if per == "byte":
        return Sample(units=units, statistic="ratio", factor=1 / math.log(2))
    return Sample(units=units, statistic="perplexity")


def relative_gain(run: Path, without: Path) -> Sample:
    """Return how much lower the bits per byte of a run are than those of one without passages, in percent."""
    nlls, base = (over_stretches(_read_run(path)[0]) for path in (run, without))
    return Sample(units=nlls, statistic="ratio", factor=-100, base=base)


@lru_cache(maxsize=8)
def _read_run(run: Path) -> tuple[DoubleArray, dict[Per, float]]:
    """The negative log-probability of every target, and the counts by which perplexities divide."""
    manifest.read_manifest(run, kind=RUN_KIND)
    with damage_errors(run, _REMEDY):
        summary: dict[str, Any] = json.loads((run / SUMMARY).read_bytes())
    targets = _read_targets(run)
    counted: dict[Per, float] = {"token": summary["tokens"], "word": summary["words"], "byte": summary["bytes"]}
    return -targets.log_probs_T, {**counted, "space": targets.text.count(" ")}


class _Targets(NamedTuple):
    """The targets of a run, with the text before the first."""

    before: str
    texts: Sequence[str]
    tokens_T: IntArray
    log_probs_T: DoubleArray

    @property
    def text(self) -> str:
        """The whole text."""
        return self.before + "".join(self.texts)


@lru_cache(maxsize=8)
def _read_targets(run: Path) -> _Targets:
    with damage_errors(run, _REMEDY):
        table = pq.read_table(run / RUN_TOKENS, columns=["text", "token", "log_prob"])
        before = (table.schema.metadata or {})[TEXT_BEFORE].decode()
        log_probs_T = table["log_prob"].to_numpy().astype(np.float64)
        return _Targets(before, table["text"].to_pylist(), table["token"].to_numpy(), log_probs_T)


def over_stretches(values_T: DoubleArray) -> Units:
    """Return the sums of the values of targets over stretches of the text."""
    return Units.of(values_T, stretches(len(values_T)))


def exact_matches(answers: Path, documents: int | None = None) -> Sample:
    """Return how often `ralm qa` answered exactly right, as a percentage; in a sweep, with a number of passages."""
    answers = answers if documents is None else answers / f"documents-{documents}"
    [right] = _columns(answers, answering.ANSWERS_KIND, answering.ANSWERS_TABLE, "exact_match")
    return _percent(right)


def answer_log_probs(answers: Path) -> Sample:
    """Return how likely the right answer was in `ralm qa`, in nats a token."""
    columns = _columns(answers, answering.ANSWERS_KIND, answering.ANSWERS_TABLE, "gold_log_prob", "gold_tokens")
    scored = [
        (0, 0) if total is None or not tokens else (total, tokens) for total, tokens in zip(*columns, strict=True)
    ]
    sums, counts = np.array(scored, np.float64).reshape(-1, 2).T
    return Sample(units=Units(sums, counts), statistic="mean")


def choice_accuracy(choices: Path, category: str | None = None) -> Sample:
    """Return how often `ralm qa` chose right, as a percentage, in a category of MMLU or in all."""
    right, subjects = _columns(choices, answering.CHOICES_KIND, answering.CHOICES_TABLE, "right", "subject")
    pairs = zip(right, subjects, strict=True)
    return _percent(
        [is_right for is_right, subject in pairs if category in (None, multiple_choice.category_of(subject or ""))]
    )


def _columns(folder: Path, kind: outputs.FolderKind, table: str, *names: str) -> list[list[Any]]:
    manifest.read_manifest(folder, kind=kind)
    with damage_errors(folder, _REMEDY):
        read = pq.read_table(folder / table, columns=[*names])
    return [read[name].to_pylist() for name in names]


def _percent(values: list[bool | None]) -> Sample:
    """The share of right values among those that could be judged."""
    judged = np.array([value is not None for value in values], np.int64)
    right = np.array([bool(value) for value in values], np.float64)
    return Sample(units=Units(right, judged), statistic="share", factor=100)


def gain_of_class(run: Path, without: Path, kind: TokenClass) -> Sample:
    """Return the mean gain of the tokens of a class."""
    return _mean_over(_gains(run, without), _classes(run) == kind)


@lru_cache(maxsize=8)
def _gains(run: Path, without: Path) -> DoubleArray:
    """The gain of each target in nats."""
    first, second = _read_targets(run), _read_targets(without)
    if not np.array_equal(first.tokens_T, second.tokens_T):
        raise UsageError(f"{run} and {without} are runs over different targets.")
    return first.log_probs_T - second.log_probs_T


def _mean_over(values_T: DoubleArray, chosen_T: NDArray[np.bool_]) -> Sample:
    """The mean of the chosen targets, over stretches of the text."""
    sums_U = over_stretches(values_T * chosen_T).sums_U
    return Sample(units=Units(sums_U, over_stretches(chosen_T.astype(np.float64)).sums_U), statistic="mean")


@lru_cache(maxsize=4)
def _classes(run: Path) -> NDArray[np.str_]:
    """The class of each target."""
    texts = _read_targets(run).texts
    return np.array([class_of(*pair) for pair in zip(texts, ["", *texts[:-1]], strict=True)])


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


def gain_by_frequency(run: Path, without: Path, index: Path, lowest: float, end: float = math.inf) -> Sample:
    """Return the mean gain of tokens in words that stand in `lowest` to `end` of a million passages. Terms of the BM25
    index `index` are counted: words without a term, such as stop words, are left out."""
    rates_T = _rates(run, index)
    with np.errstate(invalid="ignore"):
        chosen_T = (rates_T >= lowest) & (rates_T < end)
    return _mean_over(_gains(run, without), chosen_T)


@lru_cache(maxsize=4)
def _rates(run: Path, index: Path) -> DoubleArray:
    """In how many of a million passages the word of each target stands; NaN for a word without a term."""
    opened = open_index(index)
    words = words_of_tokens(_read_targets(run).texts)
    rate: dict[str, float] = {}
    for word in {*words}:
        frequency = opened.bm25.frequency(word)
        rate[word] = math.nan if frequency is None else 1e6 * frequency / len(opened.passages)
    return np.array([rate[word] for word in words])


def words_of_tokens(texts: Sequence[str]) -> list[str]:
    """Return the word of the text that each token is a part of, empty for tokens without one."""
    ends = np.cumsum([len(text) for text in texts])
    words = [""] * len(texts)
    for match in _WORD.finditer("".join(texts)):
        first, last = np.searchsorted(ends, [match.start(), match.end() - 1], side="right").tolist()
        for place in range(first, last + 1):
            words[place] = match[0]
    return words


def gain_below_overlap(run: Path, without: Path, percent: float) -> Sample:
    """Return by how many percent passages lower the token perplexity, if a target whose passage overlaps the text more
    counts as read without: the share of the passage's runs of eight words that stand in the text."""
    gain_T = np.where(_overlaps(run) <= percent / 100, _gains(run, without), 0.0)
    units = over_stretches(-gain_T)
    return Sample(units=units, statistic="perplexity", factor=-100, base=Units(0 * units.sums_U, units.counts_U))


def share_below_overlap(run: Path, percent: float) -> Sample:
    """Return how many percent of the targets keep their passage, if those that overlap the text more are taken out."""
    return Sample(
        units=over_stretches((_overlaps(run) <= percent / 100).astype(np.float64)), statistic="mean", factor=100
    )


@lru_cache(maxsize=4)
def _overlaps(run: Path) -> DoubleArray:
    """For each target, the overlap of the passage that it was read with; 0 without a passage."""
    evaluated = Decontamination.of(texts=[_read_targets(run).text], ngram=_NGRAM)
    with damage_errors(run, _REMEDY):
        passages = pq.read_table(run / PASSAGES, columns=["passage", "text"]).to_pylist()
        read = pq.read_table(run / RUN_TOKENS, columns=["passage"])["passage"].to_pylist()
    overlap = {row["passage"]: evaluated.overlap(row["text"]) for row in passages}
    return np.array([0.0 if number is None else overlap[number] for number in read])

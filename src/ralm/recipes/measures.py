"""Measures: figures with intervals from the folders of finished steps.

A measure names the steps that it needs. It gives a `Sample`: sums and counts over units (stretches of a text, or
questions), of which the figure is a function. So every figure has an interval by bootstrap over units, and two figures
over the same units have a paired one for their difference.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import numpy as np
import pyarrow.parquet as pq

from ralm.answering import curve, run as answers, run as choices
from ralm.answering.multiple_choice import category_of
from ralm.evaluation.bootstrap import bootstrap_means, interval
from ralm.recipes.steps import Step
from ralm.records import DoubleArray, IntArray
from ralm.runs.compare import TARGETS_PER_DOCUMENT
from ralm.runs.run import RUN_KIND, SUMMARY, damage_errors, read_tokens
from ralm.storage.manifest import read_manifest
from ralm.storage.outputs import FolderKind

Folders = Mapping[Step, Path]
Per = Literal["token", "word", "byte"]
REMEDY: Final = "remove it and run the recipe again"
"""The remedy for a damaged step, in messages."""
_MIN_UNITS: Final = 20
"""A text with fewer stretches is cut into shorter ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Sums and counts (U units), and the figure as a function of the ratio of their totals; `known` is its interval,
    if it was computed before."""

    sums_U: DoubleArray
    counts_U: IntArray
    figure: Callable[[Any], Any]
    known: tuple[float, float] | None = None

    @property
    def value(self) -> float:
        """The figure of all units; NaN if nothing is counted."""
        counted = self.counts_U.sum()
        return float(self.figure(self.sums_U.sum() / counted)) if counted else math.nan

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its 95% interval; None if fewer than two units count."""
        if self.known is not None:
            return self.known
        counted_U = self.counts_U > 0
        if np.count_nonzero(counted_U) < 2:
            return None
        return interval(self.figure(bootstrap_means(self.sums_U[counted_U, None], self.counts_U[counted_U])[:, 0]))


@dataclass(frozen=True, slots=True)
class Measure(ABC):
    """A figure of a finished step."""

    step: Step
    smaller_is_better: ClassVar[bool] = False

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps whose folders it reads."""
        return (self.step,)

    @property
    @abstractmethod
    def label(self) -> str:
        """Its name in a table."""

    @abstractmethod
    def sample(self, folders: Folders) -> Sample:
        """The figure with its sums and counts."""


@dataclass(frozen=True, slots=True)
class Perplexity(Measure):
    """How well a text was predicted by `ralm eval`: token or word perplexity, or bits per byte."""

    per: Per = "token"
    smaller_is_better: ClassVar[bool] = True

    @property
    def label(self) -> str:
        """Its name in a table."""
        return {"token": "token perplexity", "word": "word perplexity", "byte": "bits per byte"}[self.per]

    def sample(self, folders: Folders) -> Sample:
        """Negative log-probabilities over stretches of the text."""
        nll_T, counted = _read(folders[self.step])
        scale = _ratio(len(nll_T), counted[self.per])
        figure = _bits if self.per == "byte" else np.exp
        return stretches(nll_T, lambda mean: figure(mean * scale))


@dataclass(frozen=True, slots=True)
class PerplexityBySpaces(Measure):
    """The word perplexity of a run with as many words as its text has spaces, as the official code counts them."""

    smaller_is_better: ClassVar[bool] = True

    @property
    def label(self) -> str:
        """Its name in a table."""
        return "word perplexity"

    def sample(self, folders: Folders) -> Sample:
        """Negative log-probabilities over stretches of the text."""
        run = read_tokens(folders[self.step])
        scale = _ratio(len(run.texts), (run.before + "".join(run.texts)).count(" "))
        return stretches(-run.log_probs_T.astype(np.float64), lambda mean: np.exp(mean * scale))


def _ratio(tokens: int, counted: float) -> float:
    """Tokens for each word, space or byte; NaN, as `ralm eval` has it, for a text without any."""
    return tokens / counted if counted else math.nan


def _bits(nats: Any) -> Any:
    return nats / math.log(2)


@lru_cache(maxsize=8)
def _read(run: Path) -> tuple[DoubleArray, dict[str, float]]:
    """The negative log-probability of every target, and the counts by which perplexities divide."""
    summary = summary_of(run, RUN_KIND)
    counted = {"token": summary["tokens"], "word": summary["words"], "byte": summary["bytes"]}
    return -read_tokens(run).log_probs_T.astype(np.float64), counted


def summary_of(folder: Path, kind: FolderKind) -> dict[str, Any]:
    """The summary of a finished step; DamagedFolderError if it was altered or cannot be read."""
    read_manifest(folder, kind=kind)
    with damage_errors(folder, REMEDY):
        found: dict[str, Any] = json.loads((folder / SUMMARY).read_bytes())
    return found


def stretches(values_T: DoubleArray, figure: Callable[[Any], Any]) -> Sample:
    """A sample of stretches of 512 targets, or of shorter ones if there would be fewer than 20."""
    size = max(1, min(TARGETS_PER_DOCUMENT, len(values_T) // _MIN_UNITS))
    units_T = np.arange(len(values_T)) // size
    return Sample(np.bincount(units_T, values_T).astype(np.float64), np.bincount(units_T).astype(np.int64), figure)


@dataclass(frozen=True, slots=True)
class AnswerScore(Measure):
    """How often `ralm qa` answered exactly right, as a percentage; with `measure="gold_log_prob"`, how likely the right
    answer was, in nats a token."""

    measure: Literal["exact_match", "gold_log_prob"] = "exact_match"

    @property
    def label(self) -> str:
        """Its name in a table."""
        return "exact match, %" if self.measure == "exact_match" else "log-probability of a right token"

    def sample(self, folders: Folders) -> Sample:
        """The score of each question."""
        if self.measure == "exact_match":
            return _percent(*_answers(folders[self.step], "exact_match"))
        columns = _answers(folders[self.step], "gold_log_prob", "gold_tokens")
        known = [
            (0, 0) if total is None or not tokens else (total, tokens) for total, tokens in zip(*columns, strict=True)
        ]
        sums, counts = np.array(known, np.float64).reshape(-1, 2).T
        return Sample(sums, counts.astype(np.int64), lambda mean: mean)


@dataclass(frozen=True, slots=True)
class ChoiceAccuracy(Measure):
    """How often `ralm choice` chose right, as a percentage, in a category of MMLU or in all."""

    category: str | None = None

    @property
    def label(self) -> str:
        """Its name in a table."""
        return "accuracy, %"

    def sample(self, folders: Folders) -> Sample:
        """Which questions are right."""
        folder = folders[self.step]
        read_manifest(folder, kind=choices.CHOICES_KIND)
        right, subjects = _columns(folder, choices.CHOICES_TABLE, "right", "subject")
        kept = [
            one
            for one, subject in zip(right, subjects, strict=True)
            if self.category in (None, category_of(subject or ""))
        ]
        return _percent(kept)


def _answers(folder: Path, *names: str) -> list[list[Any]]:
    read_manifest(folder, kind=answers.ANSWERS_KIND)
    return _columns(folder, answers.ANSWERS_TABLE, *names)


def _columns(folder: Path, table: str, *names: str) -> list[list[Any]]:
    with damage_errors(folder, REMEDY):
        read = pq.read_table(folder / table, columns=[*names])
    return [read[name].to_pylist() for name in names]


def _percent(values: list[bool | None]) -> Sample:
    """The share of right values among those that could be judged."""
    judged = np.array([value is not None for value in values], np.int64)
    return Sample(np.array([bool(value) for value in values], np.float64), judged, lambda mean: 100 * mean)


@dataclass(frozen=True, slots=True)
class CurveExactMatch(Measure):
    """The exact match of `ralm curve` with a number of passages, as a percentage."""

    number: int

    @property
    def label(self) -> str:
        """Its name in a table."""
        return "exact match, %"

    def sample(self, folders: Folders) -> Sample:
        """The row of the curve, which has its interval."""
        rows = summary_of(folders[self.step], curve.CURVE_KIND)["rows"]
        row = next(row for row in rows if row["documents"] == self.number)
        if row["exact_match"] is None:
            return Sample(np.zeros(1), np.zeros(1, np.int64), lambda mean: mean)
        known = 100 * row["exact_match_low"], 100 * row["exact_match_high"]
        return Sample(np.array([row["exact_match"]]), np.ones(1, np.int64), lambda mean: 100 * mean, known)

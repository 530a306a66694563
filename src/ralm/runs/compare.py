"""Compares runs over the same text: their perplexities, and the changes against the first run, with intervals."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.evaluation.bootstrap import TARGETS_PER_DOCUMENT, bootstrap_means, interval, sums_of_units
from ralm.records import IntArray
from ralm.runs.run import read_tokens
from ralm.runs.tables import RunTokens
from ralm.validation import check_strings

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """A run, its token perplexity, and the change against the first run: the ratio of their perplexities minus 1."""

    path: Path
    token_perplexity: float
    perplexity_interval: Interval
    change: float | None
    change_interval: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs over the same targets, and the number of documents in the bootstrap."""

    runs: Sequence[ComparedRun]
    targets: int
    documents: int

    def as_json(self) -> dict[str, JsonValue]:
        """The comparison as JSON."""
        rows: list[JsonValue] = [
            {
                "run": str(run.path),
                "token_perplexity": run.token_perplexity,
                "interval": list(run.perplexity_interval),
                "change": run.change,
                "change_interval": None if run.change_interval is None else list(run.change_interval),
            }
            for run in self.runs
        ]
        return {"targets": self.targets, "documents": self.documents, "runs": rows}


def compare_runs(paths: Sequence[Path | str], *, documents: str | None = None) -> Comparison:
    """Compare runs over the same targets with the first of them, by a paired bootstrap over documents.

    `documents` is a regular expression of the line that begins a document; without it, 512 consecutive targets count as
    a document. Raises UsageError if the runs have other targets, if there are fewer than two documents, or if
    `documents` is not a regular expression.
    """
    check_strings("paths", paths)
    folders = [Path(path) for path in paths]
    runs = [read_tokens(folder) for folder in folders]
    for folder, run in zip(folders, runs, strict=True):
        if run.texts != runs[0].texts or not all(
            np.array_equal(getattr(run, column), getattr(runs[0], column)) for column in ("positions_T", "tokens_T")
        ):
            raise UsageError(
                f"{folder} and {folders[0]} are runs over different targets ({len(run.texts):,} and "
                f"{len(runs[0].texts):,}): compare runs over the same text, with the same tokenizer and the same limit "
                "of tokens."
            )
    document_T = _document_of_targets(runs[0], documents)
    counts_U = np.bincount(document_T)
    nll_TR = -np.stack([run.log_probs_T for run in runs], axis=1).astype(np.float64)
    nll_UR = sums_of_units(nll_TR, document_T)
    means_R = nll_UR.sum(axis=0) / len(document_T)
    drawn_DR = bootstrap_means(nll_UR, counts_U)
    change_R, change_DR = np.expm1(means_R - means_R[0]), np.expm1(drawn_DR - drawn_DR[:, :1])
    compared = [
        ComparedRun(
            path=folder,
            token_perplexity=float(np.exp(means_R[number])),
            perplexity_interval=interval(np.exp(drawn_DR[:, number])),
            change=float(change_R[number]) if number else None,
            change_interval=interval(change_DR[:, number]) if number else None,
        )
        for number, folder in enumerate(folders)
    ]
    return Comparison(runs=compared, targets=len(document_T), documents=len(counts_U))


def _document_of_targets(run: RunTokens, documents: str | None) -> IntArray:
    """The number of the document (int64, T) that each target belongs to, without gaps from 0."""
    if documents is None:
        document_T = np.arange(len(run.texts)) // TARGETS_PER_DOCUMENT
        how = f"it has at most {TARGETS_PER_DOCUMENT} targets, which count as one document"
    else:
        try:
            begins = re.compile(documents, re.MULTILINE)
        except re.error as error:
            raise UsageError(f"`documents` is not a regular expression ({error}): {documents!r}.") from None
        text = run.before + "".join(run.texts)
        ends_T = len(run.before) + np.cumsum([len(piece) for piece in run.texts])
        starts = [match.start() for match in begins.finditer(text)]
        # a token belongs to the document that its last character is in: tokens may begin with the line break before
        document_T = np.searchsorted(starts, ends_T - 1, side="right")
        how = f"{len(starts)} of its lines match {documents!r}"
    numbered_T = np.unique(document_T, return_inverse=True)[1].astype(np.int64)
    if not len(numbered_T) or numbered_T[-1] == 0:
        raise UsageError(f"the text of the runs is a single document ({how}); intervals need at least two.")
    return numbered_T

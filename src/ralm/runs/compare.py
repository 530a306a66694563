"""Compares runs over the same text: their perplexities, and the changes against the first run, with intervals."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.evaluation.intervals import Estimate, Units, compare, estimate, stretches
from ralm.records import IntArray
from ralm.runs.run import read_tokens
from ralm.runs.tables import RunTokens
from ralm.validation import check_strings


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """A run, its token perplexity, and the relative change from that of the first run: negative if it is lower."""

    path: Path
    token_perplexity: Estimate
    change: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs over the same targets, and the number of the units that intervals are over: documents or stretches."""

    runs: Sequence[ComparedRun]
    targets: int
    units: int
    noun: str

    def as_json(self) -> dict[str, JsonValue]:
        """The comparison as JSON."""
        rows: list[JsonValue] = [
            {
                "run": str(run.path),
                "token_perplexity": run.token_perplexity.value,
                "interval": run.token_perplexity.as_json()["interval"],
                "change": None if run.change is None else run.change.value,
                "change_interval": None if run.change is None else run.change.as_json()["interval"],
            }
            for run in self.runs
        ]
        return {"targets": self.targets, self.noun: self.units, "runs": rows}


def compare_runs(paths: Sequence[Path | str], *, documents: str | None = None) -> Comparison:
    """Compare runs over the same targets with the first of them, document by document.

    Documents are those of the evaluated file, or begin with a line that the regular expression `documents` matches;
    without any, intervals are over stretches of 512 targets. Raises UsageError if the runs have other targets, or if
    `documents` is not a regular expression or finds a single document.
    """
    check_strings("paths", paths)
    folders = [Path(path) for path in paths]
    runs = [read_tokens(folder) for folder in folders]
    for folder, run in zip(folders, runs, strict=True):
        if run.texts != runs[0].texts or not all(
            np.array_equal(getattr(run, column), getattr(runs[0], column))
            for column in ("document_T", "positions_T", "tokens_T")
        ):
            raise UsageError(
                f"{folder} and {folders[0]} are runs over different targets ({len(run.texts):,} and "
                f"{len(runs[0].texts):,}): compare runs over the same text, with the same tokenizer and the same limit "
                "of tokens."
            )
    unit_T, noun = runs[0].document_T, "documents"
    if documents is not None:
        unit_T = _document_of_targets(runs[0], documents)
    elif not unit_T.any():
        unit_T, noun = stretches(len(unit_T)), "stretches"
    nlls = [Units.of(-run.log_probs_T, unit_T) for run in runs]
    compared = [
        ComparedRun(
            path=folder,
            token_perplexity=estimate(units, "perplexity"),
            change=compare(units, nlls[0], "perplexity") if number else None,
        )
        for number, (folder, units) in enumerate(zip(folders, nlls, strict=True))
    ]
    return Comparison(runs=compared, targets=len(unit_T), units=len(nlls[0].counts_U), noun=noun)


def _document_of_targets(run: RunTokens, documents: str) -> IntArray:
    """The number of the document (int64, T) that each target belongs to, without gaps from 0."""
    try:
        begins = re.compile(documents, re.MULTILINE)
    except re.error as error:
        raise UsageError(f"`documents` is not a regular expression ({error}): {documents!r}.") from None
    text = run.before + "".join(run.texts)
    ends_T = len(run.before) + np.cumsum([len(piece) for piece in run.texts])
    starts = [match.start() for match in begins.finditer(text)]
    # a token belongs to the document that its last character is in: tokens may begin with the line break before
    document_T = np.searchsorted(starts, ends_T - 1, side="right")
    numbered_T = np.unique(document_T, return_inverse=True)[1].astype(np.int64)
    if not len(numbered_T) or numbered_T[-1] == 0:
        raise UsageError(
            f"the text of the runs is a single document: {len(starts)} of its lines match {documents!r}; give the line "
            "that begins a document."
        )
    return numbered_T

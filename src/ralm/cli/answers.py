"""Prints answers to questions with their sources, and the tables of their evaluation."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ralm.answering.answerer import SourcedAnswer
from ralm.answering.citations import AnswerSource
from ralm.answering.evaluation import AnswerEvaluation
from ralm.cli.output import beginning, passage_name, print_line
from ralm.cli.results import print_comparison
from ralm.reading.pieces import GeneratedText
from ralm.terminal import one_line, visible

_WIDTH: Final = 200
"""Number of printed characters of a source."""


def print_answers(evaluation: AnswerEvaluation, out: Path | None, how: str) -> None:
    """Print the measures of answers or choices, with passages and without, and `how` the questions were asked."""
    summary: dict[str, Any] = evaluation.summary()
    print_comparison(evaluation.books, "asked")
    if evaluation.has_choices:
        notes = _notes_on_choices(summary)
        written = f"By subject: {out}/summary.json; every question with its choices: {out}/choices.parquet"
    else:
        notes = _notes_on_answers(summary)
        written = f"Every question with its answer and passages: {out}/answers.parquet"
    if "certified" in summary:
        notes.append(f"{summary['certified']:.1%} of the tokens of answers are certified")
    if summary.get("no_passage"):
        notes.append(f"{summary['no_passage']:,} were asked without a passage, since none was found")
    if summary["cut"]:
        notes.append(f"{summary['cut']:,} prompts did not fit and were cut at the beginning")
    print_line(f"  {'; '.join(notes)}")
    print_line(f"  {how}")
    if out is not None:
        print_line(written)


def _notes_on_choices(summary: Mapping[str, Any]) -> list[str]:
    notes = [f"chance {summary['chance']:.1%}"]
    if "mean_of_subjects" in summary:
        notes.append(f"mean of subjects {summary['mean_of_subjects']:.1%}")
    if summary["no_choice"]:
        notes.append(f"{summary['no_choice']:,} answers are no letter")
    if "gold_log_prob" in summary:
        notes.append("gold log prob: natural logarithm of the right choice's probability")
    return notes


def _notes_on_answers(summary: Mapping[str, Any]) -> list[str]:
    notes = ["gold log prob: nats a token of the gold answer"] if "gold_log_prob" in summary else []
    if summary["without_answers"]:
        notes.append(f"{summary['without_answers']:,} without gold answers, not judged")
    missing = summary["questions"] - summary["without_answers"] - summary["gold_scored"]
    if missing and summary["gold_scored"]:
        notes.append(f"{missing:,} gold answers could not be scored")
    shares = {k: share for k, share in summary.get("has_answer_at", {}).items() if share is not None}
    if shares:
        notes.append("an answer is in the first " + ", ".join(f"{k}: {share:.1%}" for k, share in shares.items()))
    return notes


def print_pieces(pieces: Iterable[GeneratedText]) -> None:
    """Print an answer as it comes."""
    empty = True
    for piece in pieces:
        text = piece.text.lstrip() if empty else piece.text
        empty = empty and not text
        sys.stdout.write(visible(text))
        sys.stdout.flush()
    print_line("(an empty answer)" if empty else "")


def print_passages(text: str, sources: Sequence[AnswerSource]) -> None:
    """Print the passages of an answer, and how each is known to be a source."""
    for rank, source in enumerate(sources, 1):
        print_line(f"\n{rank:>3}. {source.evidence}  {passage_name(source.passage)}")
        quoted = [text[slice(*quote.answer)] for quote in source.quotes]
        if quoted:
            print_line("     quoted: " + one_line(" | ".join(quoted)))
        print_line(f"     {beginning(' '.join(source.passage.text.split()), _WIDTH)}")


def print_sources(answer: SourcedAnswer) -> None:
    """Print the passages of an answer, the contribution of each, and the log-probability of the answer."""
    print_passages(answer.answer.text, answer.sources)
    tokens = len(answer.answer.tokens)
    if answer.cut:
        print_line(f"\nThe prompt did not fit: {answer.cut.documents:,} tokens of passages were cut at the beginning.")
    if tokens:
        text = answer.text
        mean, without = (float(column.mean(dtype="float64")) for column in (text.log_probs_T, text.baseline_T))
        beside = f" with passages, {without:.2f} without" if answer.sources and not math.isnan(without) else ""
        if not math.isnan(mean):
            print_line(f"\nLog-probability of the answer: {mean:.2f} nats a token{beside} ({tokens} tokens).")
    if any(token.is_bounded for token in answer.answer.tokens):
        print_line(f"{answer.answer.certified:.0%} of its tokens are certified; the log-probability is at least this.")

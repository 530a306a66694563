"""Prints answers to questions with their sources, and the tables and reports of their evaluation."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from ralm.answering import multiple_choice
from ralm.answering.answerer import SourcedAnswer
from ralm.answering.compare import AnswersComparison
from ralm.answering.evaluation import AnswerEvaluation, ChoiceEvaluation
from ralm.answering.metrics import ANSWER_MEASURES
from ralm.answering.sweep import AnswerSweep
from ralm.cli.output import beginning, passage_name, print_line, print_table, with_interval
from ralm.evaluation.intervals import NO_INTERVAL
from ralm.reading.pieces import GeneratedText
from ralm.runs.report import to_float
from ralm.runs.run import SWEEP_PLOT, SWEEP_TABLE
from ralm.terminal import one_line, visible

_WIDTH: Final = 200
"""Number of printed characters of a source."""
_BEFORE: Final = 60
"""Number of these characters before the first answer."""
_ANSWER_METRICS = {
    **{name: (measure.label, 100, ".1f") for name, measure in ANSWER_MEASURES.items() if measure.label},
    "agrees": ("judge agrees", 100, ".1f"),
    "gold_log_prob": ("gold answer", 1, ".2f"),
}
"""The metrics of answers that are printed, each with its label, factor and format."""
_CHOICE_METRICS = {
    "accuracy": ("accuracy", 100, ".1f"),
    "mean_of_subjects": ("mean of subjects", 100, ".1f"),
    **{category: (category, 100, ".1f") for category in multiple_choice.CATEGORIES},
    "gold_log_prob": ("right choice", 1, ".2f"),
    "brier_score": ("Brier score", 1, ".2f"),
}
"""The same for multiple choice."""


def print_answers(evaluation: AnswerEvaluation, out: Path | None, how: str) -> None:
    """Print the measures of answers or choices, with passages and without, and `how` the questions were asked."""
    summary: dict[str, Any] = evaluation.summary()
    notes = [f"{len(evaluation.rows):,} questions"]
    if isinstance(evaluation, ChoiceEvaluation):
        _print_books(summary, evaluation.documents, _CHOICE_METRICS)
        explained = "; right choice: natural logarithm of its probability" if "gold_log_prob" in summary else ""
        print_line(f"  accuracy in percent, {_intervals(summary)}{explained}")
        notes.append(f"chance {summary['chance']:.1%}")
        if summary["no_choice"]:
            notes.append(f"{summary['no_choice']:,} answers are no letter")
        written = f"By subject: {out}/summary.json; every question with its choices: {out}/choices.parquet"
    else:
        _print_books(summary, evaluation.documents, _ANSWER_METRICS)
        scale = "gold answer: log-probability of its tokens, in nats a token"
        print_line(f"  in percent, {_intervals(summary)}; {scale}")
        notes += _notes_on_answers(summary, evaluation.judge)
        written = f"Every question with its answer and passages: {out}/answers.parquet"
    if "certified" in summary:
        of = "choices" if isinstance(evaluation, ChoiceEvaluation) else "tokens of answers"
        notes.append(f"{summary['certified']:.1%} of the {of} are certified")
    if summary.get("no_passage"):
        notes.append(f"{summary['no_passage']:,} were asked without a passage, since none was found")
    if summary["cut"]:
        notes.append(f"{summary['cut']:,} prompts did not fit and were cut at the beginning")
    print_line(f"  {'; '.join(notes)}")
    print_line(f"  {how}")
    if out is not None:
        print_line(written)


def _intervals(summary: Mapping[str, Any]) -> str:
    """Whether the figures of a summary have intervals over questions."""
    known = any(figure for name, figure in summary.items() if name.endswith("_interval"))
    return "with 95% intervals over questions" if known else NO_INTERVAL


def _notes_on_answers(summary: Mapping[str, Any], judge: str | None) -> list[str]:
    notes = []
    if summary["without_answers"]:
        notes.append(f"{summary['without_answers']:,} without gold answers, not judged")
    notes += _unscored(summary)
    if failures := sum(part.get("judge_failures", 0) for part in (summary, summary.get("closed_book", {}))):
        notes.append(f"{failures:,} answers without a verdict: {judge} did not reply yes or no")
    if held := summary.get("has_answer"):
        notes.append("an answer is in the first " + ", ".join(f"{k}: {share:.1%}" for k, share in held.items()))
    return notes


def _unscored(summary: Mapping[str, Any]) -> list[str]:
    """Return the number of gold answers that did not fit after a prompt, if others did."""
    missing = summary["questions"] - summary["without_answers"] - summary["gold_scored"]
    return [f"{missing:,} gold answers could not be scored"] if missing and summary["gold_scored"] else []


def print_answer_sweep(swept: AnswerSweep, out: Path | None, asked: Sequence[str]) -> None:
    """Print a table with one row per value of an option, and how the questions were `asked`."""
    summaries = {value: _with_categories(summary) for value, summary in swept.summaries().items()}
    first = next(iter(summaries.values()))
    metrics = _ANSWER_METRICS if "without_answers" in first else _CHOICE_METRICS
    shown = {name: how for name, how in metrics.items() if any(name in one for one in summaries.values())}
    labels = [label for label, _, _ in shown.values()]
    read = {row[swept.option]: row["has_answer"] for row in swept.rows() if row.get("has_answer") is not None}
    rows = [
        [
            one_line(value),
            *(_with_interval(one, name, factor, form) for name, (_, factor, form) in shown.items()),
            *([f"{to_float(read[value]):.1%}" if value in read else ""] if read else []),
        ]
        for value, one in summaries.items()
    ]
    print_table([f"--{swept.option}", *labels, *(["has answer"] if read else [])], rows, pad_edge=False)
    differences = {name: figures for name, figures in swept.differences.items() if name in shown}
    if len(summaries) > 1 and differences:
        rows = [[one_line(value)] for value in [*summaries][1:]]
        for name, figures in differences.items():
            _, factor, form = shown[name]
            for row, figure in zip(rows, figures[1:], strict=True):
                row.append(with_interval(figure.times(factor), f"+{form}"))
        print_table(["minus the first", *(shown[name][0] for name in differences)], rows, pad_edge=False)
    notes = _unscored(first) if "gold_scored" in first else []
    print_line("; ".join([f"  {_intervals(first)}; shares in percent, log-probabilities in nats", *notes]))
    for how in asked:
        print_line(f"  {how}")
    if out is not None:
        plot = f", {out / SWEEP_PLOT}" if (out / SWEEP_PLOT).exists() else ""
        print_line(f"The table: {out / SWEEP_TABLE}{plot}; a run for each value, for `ralm report`: {out}")


def print_answers_comparison(compared: AnswersComparison) -> None:
    """Print a table with one row per run and metric."""
    labels = {**_CHOICE_METRICS, **_ANSWER_METRICS} if "exact_match" in compared.measures else _CHOICE_METRICS
    rows = []
    for name, measures in compared.measures.items():
        label, factor, form = labels.get(name, (name.replace("_", " "), 100, ".1f"))
        for place, path in enumerate(compared.runs):
            row = [label if place == 0 else "", one_line(path.name), with_interval(measures[place].times(factor), form)]
            if place:
                row.append(with_interval(compared.differences[name][place].times(factor), f"+{form}"))
            rows.append([*row, ""][:4])
    print_table(["", "run", "mean", "minus the first"], rows, pad_edge=False)
    known = any(figure.ends for figures in compared.measures.values() for figure in figures)
    print_line(f"  {compared.questions:,} questions: {'95% intervals' if known else NO_INTERVAL}")


def _with_categories(measures: Mapping[str, Any]) -> dict[str, Any]:
    """Return measures with the accuracy of each category under the category's name."""
    categories: dict[str, Any] = {}
    for name, own in measures.get("categories", {}).items():
        categories |= {name: own["accuracy"], f"{name}_interval": own["accuracy_interval"]}
    return {**measures, **categories}


def _print_books(summary: dict[str, Any], documents: int, metrics: Mapping[str, tuple[str, int, str]]) -> None:
    """Print a table of metrics, each with its label, factor and format: closed book, the same prompt without passages,
    with passages, and the difference of the last two."""
    read = "with passages" if documents else "closed book"
    books = {"closed book": "closed_book", "same prompt without": "without_passages"}
    found = {name: _with_categories(summary[book]) for name, book in books.items() if summary.get(book)}
    rows = {**found, read: _with_categories(summary)}
    rows |= {"difference": _with_categories(summary["difference"])} if found else {}
    cells = []
    for metric, (label, factor, form) in metrics.items():
        figures = [
            _with_interval(measures, metric, factor, "+" + form if name == "difference" else form)
            for name, measures in rows.items()
        ]
        if any(figures):
            cells.append([label, *figures])
    print_table(["", *rows], cells, pad_edge=False)


def _with_interval(measures: Mapping[str, Any] | None, metric: str, factor: int, form: str) -> str:
    """A measure, and its interval on a line of its own if it has one; empty if there is no such measure."""
    if not measures or metric not in measures:
        return ""
    found = (measures[metric], *(measures.get(f"{metric}_interval") or ()))
    value, *ends = (format(factor * to_float(one), form) for one in found)
    return f"{value}\n({', '.join(ends)})" if ends else value


def print_pieces(pieces: Iterable[GeneratedText]) -> None:
    """Print an answer as it comes."""
    empty = True
    for piece in pieces:
        text = piece.text.lstrip() if empty else piece.text
        empty = empty and not text
        sys.stdout.write(visible(text))
        sys.stdout.flush()
    print_line("(an empty answer)" if empty else "")


def print_sources(answer: SourcedAnswer) -> None:
    """Print the passages of an answer, the contribution of each, and the log-probability of the answer."""
    tokens = len(answer.answer.tokens)
    for rank, source in enumerate(answer.sources, 1):
        known = str(source.known)
        if source.known == "measured":
            known += f" {source.share:.0%} {source.gain:+.2f} nats"
        print_line(f"\n{rank:>3}. {known}  {passage_name(source.passage)}")
        quoted = [answer.answer.text[slice(*one.answer)] for one in source.quotes]
        if quoted:
            print_line("     quoted: " + one_line(" | ".join(quoted)))
        print_line(f"     {beginning(' '.join(source.passage.text.split()), _WIDTH)}")
    if answer.cut:
        print_line(f"\nThe prompt did not fit: {answer.cut.documents:,} tokens of passages were cut at the beginning.")
    if tokens:
        own, without = (float(one.mean(dtype="float64")) for one in (answer.text.log_probs_T, answer.text.baseline_T))
        beside = f" with passages, {without:.2f} without" if answer.sources and not math.isnan(without) else ""
        if answer.control_T is not None:
            beside += f", {answer.control_T.mean(dtype='float64'):.2f} with unrelated ones"
        if not math.isnan(own):
            print_line(f"\nLog-probability of the answer: {own:.2f} nats a token{beside} ({tokens} tokens).")
    if any(token.is_bounded for token in answer.answer.tokens):
        print_line(f"{answer.answer.certified:.0%} of its tokens are certified; the log-probability is at least this.")


def print_answers_report(report: Mapping[str, Any]) -> None:
    """Print the questions of a report, each with its answers and its passages, the answer marked."""
    print_line(f"{report['title']}: " + ", ".join(f"{label} {value}" for label, value in report["settings"].items()))
    passages = {passage["passage"]: passage for passage in report["passages"]}
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    for one in report["questions"]:
        print_line(f"\n{one_line(one['question'])}")
        print_line(f"  gold answers    {one_line(' | '.join(one['answers']))}")
        print_line(f"  {'with passages' if one['passages'] else 'closed book':<16}{_verdict(one)}")
        for label, book in (("without passages", "without_passages"), ("closed book", "closed_book")):
            if one[book]:
                print_line(f"  {label:<16}{_verdict(one[book])}")
        for rank, source in enumerate(one["passages"], 1):
            passage = passages[source["passage"]]
            name, place = one_line(passage["title"] or passage["document_id"]), one_line(passage["place"])
            known = "quoted" if source["quotes"] else "retrieved"
            shown = known if source["share"] is None else f"{source['share']:.0%} of the mixture, {known}"
            print_line(f"  {rank:>3}. {shown}: {name} (passage {source['passage']}; {place})")
            console.print(Text("       ").append_text(_marked(passage["text"], source["marked"])))
    if len(report["questions"]) < report["total"]:
        print_line(f"\n(the first {len(report['questions']):,} of {report['total']:,} questions)")


def _verdict(judged: Mapping[str, Any]) -> str:
    """An answer, whether it is right, and the log-probability of the gold answer."""
    answer = one_line(judged["answer"]).strip() or "(nothing)"
    gold, tokens = judged["gold_log_prob"], judged["gold_tokens"]
    likely = f"; gold answer {gold / tokens:.2f} nats a token" if gold is not None and tokens else ""
    verdict = {None: "no gold answer", True: "right", False: "wrong"}[judged["exact_match"]]
    if verdict == "wrong" and judged["contains"]:
        verdict = "not exact, but contains a gold answer"
    if judged["agrees"] is not None:
        verdict += f"; the judge says {'yes' if judged['agrees'] else 'no'}"
    return f"{answer} ({verdict}{likely})"


def _marked(text: str, spans: Sequence[Sequence[int]]) -> Text:
    """The part of a passage around the first answer in it, or its beginning, with the answers marked."""
    begin = max(0, spans[0][0] - _BEFORE) if spans else 0
    begin = text.rfind(" ", 0, begin) + 1  # of a word
    shown = Text("..." if begin else "")
    for place, character in enumerate(text[begin : begin + _WIDTH], begin):
        inside = any(first <= place < last for first, last in spans)
        shown.append(visible(" " if character.isspace() else character), "bold reverse" if inside else "")
    return shown.append("..." if begin + _WIDTH < len(text) else "")

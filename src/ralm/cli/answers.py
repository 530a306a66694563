"""What commands print of answers to questions, for a person."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from ralm.answering.report import AnswersReport
from ralm.answering.sourced import SourcedAnswer
from ralm.cli.messages import note
from ralm.cli.output import passage_name, print_line
from ralm.controls import one_line, visible
from ralm.folders.outputs import replaced_file
from ralm.reading.pieces import GeneratedText
from ralm.runs.page import page

_WIDTH: Final = 200
"""How many characters of a source are printed."""
_BEFORE: Final = 60
"""How many of them stand before the first answer in it."""


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
    """Print the passages that an answer was read with, what each gave to it, and how likely the answer is."""
    tokens = len(answer.answer.tokens)
    for rank, source in enumerate(answer.sources, 1):
        gave = "in the same prompt" if source.gain is None else f"{source.share:.0%} {source.gain:+.2f} nats"
        text = " ".join(source.passage.text.split())
        print_line(f"\n{rank:>3}. {gave if tokens else '-'}  {passage_name(source.passage)}")
        print_line(f"     {text[:_WIDTH]}{'...' if len(text) > _WIDTH else ''}")
    if answer.cut:
        print_line(f"\nThe prompt did not fit: {answer.cut.documents:,} tokens of passages were cut at the beginning.")
    if tokens:
        own, without = (float(one.mean(dtype="float64")) for one in (answer.text.log_probs_T, answer.text.baseline_T))
        beside = f" with passages, {without:.2f} without" if answer.sources else ""
        print_line(f"\nLog-probability of the answer: {own:.2f} nats a token{beside} ({tokens} tokens).")


def print_answers_report(report: AnswersReport) -> None:
    """Print the questions of a report, each with its answers and its passages, the answer marked."""
    print_line(f"{report.title}: " + ", ".join(f"{label} {value}" for label, value in report.settings.items()))
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    for one in report.questions:
        print_line(f"\n{one_line(one['question'])}")
        print_line(f"  gold answers    {one_line(' | '.join(one['answers']))}")
        print_line(f"  {'with passages' if one['passages'] else 'closed book':<16}{_verdict(one)}")
        if one["closed_book"]:
            print_line(f"  closed book     {_verdict(one['closed_book'])}")
        for rank, source in enumerate(one["passages"], 1):
            passage = report.passages[source["passage"]]
            name = one_line(passage["title"] or passage["document_id"])
            print_line(f"  {rank:>3}. {source['share']:4.0%}  {name} (passage {source['passage']})")
            console.print(Text("       ").append_text(_marked(passage["text"], source["marked"])))
    if len(report.questions) < report.total:
        print_line(f"\n(the first {len(report.questions):,} of {report.total:,} questions)")


def write_answers_page(file: Path, report: AnswersReport) -> None:
    """Write the report as an HTML page, and print its path on standard error."""
    with replaced_file(file) as written:
        written.write(page("ralm.answering", "answers.html", report.title, report.as_json()))
    note(f"{file} shows every question with its answers and passages; open it in a browser")


def _verdict(judged: Mapping[str, Any]) -> str:
    """An answer, whether it is right, and how likely the gold answer was."""
    said = one_line(judged["answer"]).strip() or "(nothing)"
    gold, tokens = judged["gold_log_prob"], judged["gold_tokens"]
    likely = f"; gold answer {gold / tokens:.2f} nats a token" if gold is not None and tokens else ""
    return f"{said} ({'right' if judged['exact_match'] else 'wrong'}{likely})"


def _marked(text: str, spans: Sequence[Sequence[int]]) -> Text:
    """The part of a passage around the first answer in it, or its beginning, with the answers marked."""
    begin = max(0, spans[0][0] - _BEFORE) if spans else 0
    begin = text.rfind(" ", 0, begin) + 1  # of a word
    shown = Text("..." if begin else "")
    for place, character in enumerate(text[begin : begin + _WIDTH], begin):
        inside = any(first <= place < last for first, last in spans)
        shown.append(visible(" " if character.isspace() else character), "bold reverse" if inside else "")
    return shown.append("..." if begin + _WIDTH < len(text) else "")

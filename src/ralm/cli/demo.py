"""`ralm demo`: shows what retrieval does for small language models, with the documentation of this Python."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import ralm
from ralm.cli import flags, options
from ralm.errors import MissingExtraError
from ralm.lm import SMOLLM2, TINY
from ralm.options import Option

if TYPE_CHECKING:
    from ralm.demo import Demonstration
    from ralm.protocols import WritingModel

_ROWS: Final = {
    "none": "no retrieval",
    "random": "random passages",
    "bm25": "BM25's first",
    "recommended": "recommended",
}
_NEXT_STEPS: Final = """
Where every token came from: open {folder}/report.html in a browser. Next:

  ralm ask "What is the default port of smtplib.SMTP?" --lm {chat} --index {folder}/index
  ralm index YOUR_DOCUMENTS --out my-index
  ralm ask "YOUR QUESTION" --lm {chat} --index my-index
  ralm eval YOUR_TEXT.txt --lm {lm} --index my-index --baseline --out my-run
"""


def demo_command(
    *,
    folder: Annotated[Path, Option("Folder for the corpus, the text, the index and a report of every token.")] = Path(
        "ralm-demo"
    ),
    lm: Annotated[
        str, Option("Model that reads the held-out text; one with a chat template also answers, else smollm2.")
    ] = TINY,
    limit_tokens: Annotated[int, Option("Number of tokens of the held-out text to score.", minimum=2)] = 5700,
    model_options: options.Model,
) -> flags.Output:
    """Ask a small model about Python with and without passages of its documentation, and predict a tenth of it.

    The held-out tenth is read without passages, with random ones, with BM25's and with the recommended settings.

    Example: `ralm demo`
    """
    from ralm.cli.output import write_page
    from ralm.demo import REPORT, Demonstration, build_demo_folder, demonstrate
    from ralm.evaluation.report import render_report

    model_options.check_effect(lm)
    model = ralm.load_language_model(lm, model_options)
    build_demo_folder(folder)

    def read() -> Demonstration:
        shown = demonstrate(folder, model, limit_tokens)
        write_page(folder / REPORT, render_report(shown.report(model)), "where every token came from")
        return shown

    return flags.Output(
        lambda: {name: reading.as_dict() for name, reading in read().readings.items()},
        lambda: _print(folder, model, read),
    )


def _print(folder: Path, model: "WritingModel", read: Callable[[], "Demonstration"]) -> None:
    """Print answers, the table of readings, and commands to try next."""
    from ralm.cli.output import print_line
    from ralm.cli.results import print_measures
    from ralm.lm.tokenizer import has_chat_template

    chat = model.name if has_chat_template(model.tokenizer) else SMOLLM2
    try:
        _print_answers(folder, model if chat == model.name else ralm.load_language_model(SMOLLM2))
    except MissingExtraError as error:
        print_line(f"No question is answered: {error}")
    readings = {_ROWS[name]: reading for name, reading in read().readings.items()}
    first = next(iter(readings.values()))
    seen = "it never saw" if model.name == TINY else "it may have seen"
    print_line(f"\n{model.name} on a tenth of the documentation, which {seen}, with passages of the rest:")
    changes = {name: reading.change_from(first) for name, reading in readings.items() if reading is not first}
    print_measures(readings, changes)
    print_line(_NEXT_STEPS.format(folder=folder, lm=model.name, chat=chat))


def _print_answers(folder: Path, chat: "WritingModel") -> None:
    """Print questions, each with its answer, the sources of the answer, and the answer without passages."""
    from ralm.cli.output import print_line
    from ralm.cli.results import print_passages
    from ralm.demo import INDEX, QUESTIONS, answer_questions

    pipeline = ralm.Pipeline(model=chat, source=ralm.FromRetriever.of_index(folder / INDEX))
    print_line(f"{chat.name} answers questions about Python, with a passage of its documentation and without:")
    for answer, without in answer_questions(QUESTIONS, pipeline):
        print_line(f"\n{answer.question}\n\n  with:    {' '.join(answer.answer.text.split())}")
        print_line(f"  without: {' '.join(without.answer.text.split())}")
        print_passages(answer.answer.text, answer.sources)

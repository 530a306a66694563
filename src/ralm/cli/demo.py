"""`ralm demo`: shows the effect of retrieval on a small language model, with the documentation of this Python."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import ralm
from ralm.cli import options
from ralm.cli.flags import Output
from ralm.errors import MissingExtraError
from ralm.lm import SMOLLM2, TINY
from ralm.options import Option
from ralm.reading.plan import PlanOptions, Stride
from ralm.retrieval.retriever import RetrieverOptions
from ralm.settings import PipelineOptions

if TYPE_CHECKING:
    from ralm.demo.demonstration import Demonstration
    from ralm.protocols import WritingModel
    from ralm.reading.sources import FromRetriever

_ROWS: Final = {
    "none": "no retrieval",
    "random": "random passages",
    "bm25": "BM25 passages",
    "oracle": "best of BM25's 16 (oracle)",
}
_STRIDE: Final = PlanOptions().stride
_QUESTIONS: Final = (
    "Which exception does graphlib raise if the graph has a cycle?",
    "Who developed turtle graphics?",
    "What is the default port of smtplib.SMTP?",
    "Who led the development of the Simple API for XML?",
    "Who wrote the module wsgiref.headers?",
)
"""Questions that the corpus answers, and that SmolLM2 gets wrong without it."""
_ANSWERS: Final = """
Answers, as `ralm ask "..." --lm {lm} --index {folder}/index --new-tokens {new_tokens}` gives them:"""
_NEXT_STEPS: Final = """
Where every token came from: open {folder}/report.html in a browser.

Next, with your own text and any model of the hub:

  ralm search {folder}/index "open a file for writing"
  ralm eval {folder}/heldout.txt --lm {lm} --index {folder}/index --limit-tokens 2000 --windows blocked --baseline
  ralm index YOUR_DOCUMENTS --out my-index
  ralm eval YOUR_TEXT.txt --lm gpt2 --index my-index --baseline --out my-run
  ralm generate "Once upon a time" --lm gpt2 --index my-index
"""


def demo_command(
    *,
    folder: Annotated[Path, Option("Folder for the corpus, the text, the index and a report of every token.")] = Path(
        "ralm-demo"
    ),
    lm: Annotated[str, Option("Causal language model to read with.")] = TINY,
    limit_tokens: Annotated[int, Option("Number of tokens of the held-out text to score.", minimum=2)] = 4000,
    stride: Stride = _STRIDE,
    questions: Annotated[
        int,
        Option(
            "Number of questions to answer, by the model or, if it has no chat template, by smollm2.",
            minimum=0,
            maximum=len(_QUESTIONS),
        ),
    ] = 1,
    model_options: options.Model,
) -> Output:
    """Index nine tenths of this Python's documentation, and score the last tenth with and without its passages. Then
    answer questions about Python with and without passages.

    Example: `ralm demo`
    """
    from ralm.cli.output import write_page
    from ralm.corpus.files import read_text
    from ralm.demo.demonstration import HELD_OUT, INDEX, REPORT, build_demo_folder, demo_report, demonstrate
    from ralm.pipeline import open_pipeline
    from ralm.runs.report import render_report

    model = open_pipeline(PipelineOptions(lm=lm, model=model_options)).model
    build_demo_folder(folder)
    bm25 = ralm.FromRetriever.of_index(folder / INDEX)
    control = ralm.FromRetriever.of_index(folder / INDEX, RetrieverOptions(retriever="random"))
    text = read_text(folder / HELD_OUT)
    shown = demonstrate(text, model, bm25, control, limit_tokens=limit_tokens, stride=stride)
    write_page(folder / REPORT, render_report(demo_report(shown, model)), "where every token came from")
    return Output(
        lambda: {name: reading.as_dict() for name, reading in shown.readings.items()},
        partial(_print, folder, shown, model, bm25, _QUESTIONS[:questions]),
    )


def _print(
    folder: Path, shown: "Demonstration", model: "WritingModel", bm25: "FromRetriever", questions: Sequence[str]
) -> None:
    """Print the table, the tokens that gained most, one generation with its sources, answers to the questions, and
    commands to try next."""
    from ralm.cli.output import print_generation, print_line, source_name
    from ralm.cli.results import print_measures
    from ralm.demo.demonstration import most_gained, prompt_where_retrieval_helps
    from ralm.evaluation.perplexity import change_of

    seen = "it never saw" if model.name == TINY else f"it may have seen, every {shown.stride} tokens"
    print_line(f"\n{model.name} on documentation {seen}, with passages from the rest of it:")
    rows = {_ROWS[name]: reading for name, reading in shown.readings.items()}
    first = next(iter(rows.values()))
    print_measures(rows, {name: change_of(reading, first) for name, reading in rows.items() if reading is not first})
    print_line("\nTokens that gained most from their passage:\n")
    for gained in most_gained(shown, model):
        before = " ".join(gained.before.split())
        source = source_name(gained.passage, shown.passages)
        print_line(f"  {gained.gain:+5.1f} nats  ...{before} [{gained.token.strip()}]   <- {source}")
    print_line("\nGeneration, where retrieval helps most; every part with its source:\n")
    prompt = prompt_where_retrieval_helps(shown, model)
    print_generation(prompt, ralm.generate(prompt, model, source=bm25), bm25.passages)
    if questions:
        _print_answers(folder, questions, model, bm25)
    print_line(_NEXT_STEPS.format(folder=folder, lm=model.name))


def _print_answers(folder: Path, questions: Sequence[str], model: "WritingModel", bm25: "FromRetriever") -> None:
    """Print questions with their answers and sources, and the answers without passages; or how to install smollm2."""
    from ralm.cli.answers import print_pieces, print_sources
    from ralm.cli.output import print_line
    from ralm.demo.demonstration import ANSWERING, answer_questions
    from ralm.lm.tokenizer import has_chat_template

    try:
        chat = model if has_chat_template(model.tokenizer) else ralm.load_language_model(SMOLLM2)
    except MissingExtraError as error:
        print_line(f"\nTo see a question answered by SmolLM2, with its sources: {error}")
        return
    print_line(_ANSWERS.format(lm=chat.name, folder=folder, new_tokens=ANSWERING.new_tokens))
    for answer, without in answer_questions(questions, chat, bm25):
        print_line(f"\n{answer.question}\n")
        print_pieces(answer.answer.pieces)
        print_sources(answer)
        print_line(f"\nThe answer without passages: {' '.join(without.answer.text.split())}")

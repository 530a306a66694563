"""`ralm demo`: shows the effect of retrieval on a small language model, with the documentation of this Python."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import ralm
from ralm.cli.flags import Flags, Output
from ralm.lm.registry import ModelOptions
from ralm.options import Option
from ralm.retrieval.retriever import RetrieverOptions

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
_NEXT_STEPS: Final = """
Where every token came from: open {folder}/report.html in a browser.

Next, with your own text and any model of the hub:

  ralm search {folder}/index "open a file for writing"
  ralm eval {folder}/heldout.txt --lm ralm-tiny --index {folder}/index --limit-tokens 2000 --windows blocked --baseline
  ralm index YOUR_DOCUMENTS --out my-index
  ralm eval YOUR_TEXT.txt --lm gpt2 --index my-index --baseline --out my-run
  ralm generate "Once upon a time" --lm gpt2 --index my-index
"""


def demo_command(
    *,
    folder: Annotated[Path, Option("Folder for the corpus, the text, the index and a report of every token.")] = Path(
        "ralm-demo"
    ),
    lm: Annotated[str, Option("Causal language model to read with.")] = "ralm-tiny",
    limit_tokens: Annotated[int, Option("Number of tokens of the held-out text to score.", minimum=2)] = 4000,
    model_options: Annotated[ModelOptions, Flags(without=("compile", "api"))],
) -> Output:
    """Index nine tenths of this Python's documentation, and score the last tenth with and without its passages."""
    from ralm.cli.results import write_page
    from ralm.corpus.files import read_text
    from ralm.demo.demonstration import HELD_OUT, INDEX, REPORT, build_demo_folder, demo_report, demonstrate

    model = ralm.load_language_model(lm, model_options)
    build_demo_folder(folder)
    bm25, control = (
        ralm.FromRetriever.of_index(folder / INDEX, RetrieverOptions(retriever=retriever))
        for retriever in ("bm25", "random")
    )
    shown = demonstrate(read_text(folder / HELD_OUT), model, bm25, control, limit_tokens=limit_tokens)
    write_page(folder / REPORT, demo_report(shown, model))
    return Output(
        lambda: {name: reading.as_dict() for name, reading in shown.readings.items()},
        partial(_print, folder, shown, model, bm25),
    )


def _print(folder: Path, shown: "Demonstration", model: "WritingModel", bm25: "FromRetriever") -> None:
    """Print the table, the tokens that gained most, one generation with its sources, and commands to try next."""
    from ralm.cli.output import print_generation, print_line, source_name
    from ralm.cli.results import print_measures
    from ralm.demo.demonstration import most_gained, prompt_where_retrieval_helps

    print_line(f"\n{model.name} on documentation it never saw, with passages from the rest of it:")
    print_measures({_ROWS[name]: reading.as_dict() for name, reading in shown.readings.items()})
    print_line("\nTokens that gained most from their passage:\n")
    for gained in most_gained(shown, model):
        before = " ".join(gained.before.split())
        source = source_name(gained.passage, shown.passages)
        print_line(f"  {gained.gain:+5.1f} nats  ...{before} [{gained.token.strip()}]   <- {source}")
    print_line("\nGeneration, where retrieval helps most; every part with its source:\n")
    prompt = prompt_where_retrieval_helps(shown, model)
    print_generation(prompt, ralm.generate(prompt, model, source=bm25), bm25.passages)
    print_line(_NEXT_STEPS.format(folder=folder))

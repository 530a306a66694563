"""`ralm demo`: shows what retrieval does for a small language model, on the documentation of this Python."""

from pathlib import Path
from typing import Annotated

from ralm.cli import options
from ralm.cli.flags import Flags
from ralm.lm.options import ModelOptions
from ralm.options import Option
from ralm.retrieval.retriever import RetrieverOptions

_FOLDER, _MODEL = Path("ralm-demo"), ModelOptions()


def demo(
    folder: Annotated[
        Path, Option("Folder for the corpus, the text, the index and a report of every token.")
    ] = _FOLDER,
    lm: Annotated[str, Option("Causal language model to read with.")] = "ralm-tiny",
    limit_tokens: Annotated[int, Option("Number of tokens of the held-out text to score.", least=2)] = 4000,
    model_options: Annotated[ModelOptions, Flags(without=("compile", "api"))] = _MODEL,
    json: options.Json = False,
) -> None:
    """Index nine tenths of this Python's documentation, and score the last tenth with and without its passages."""
    from ralm.cli.output import print_demo, print_json
    from ralm.cli.shading import write_page
    from ralm.corpus.files import read_text
    from ralm.demo.demonstration import HELD_OUT, INDEX, REPORT, build_demo_folder, demo_report, demonstrate
    from ralm.lm.named import load_language_model
    from ralm.reading.sources import FromRetriever

    model = load_language_model(lm, model_options)
    build_demo_folder(folder)
    bm25 = FromRetriever.of_index(folder / INDEX, RetrieverOptions(retriever="bm25"))
    control = FromRetriever.of_index(folder / INDEX, RetrieverOptions(retriever="random"))
    shown = demonstrate(read_text(folder / HELD_OUT), model, bm25, control, limit_tokens=limit_tokens)
    write_page(folder / REPORT, demo_report(shown, model))
    if json:
        print_json({name: reading.as_dict() for name, reading in shown.readings.items()})
    else:
        print_demo(folder, shown, model, bm25)

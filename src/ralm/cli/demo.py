"""`ralm demo`: what retrieval does for a small language model, on this Python's own documentation."""

from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options


def demo(
    folder: Annotated[
        Path, typer.Option(help="Where corpus, text, index and a report of every token are left.")
    ] = Path("ralm-demo"),
    lm: Annotated[str, typer.Option(help="Causal language model to read with.")] = "ralm-tiny",
    limit_tokens: Annotated[int, typer.Option(min=2, help="Score so many tokens of the held-out text.")] = 4000,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Index this Python's own documentation but for a tenth, and read that tenth without and with its passages."""
    from ralm.cli.models import load_model
    from ralm.cli.output import print_demo, print_json
    from ralm.cli.shading import write_page
    from ralm.corpus.text import read_text
    from ralm.demo.demonstration import HELD_OUT, INDEX, REPORT, build_demo_folder, demo_report, demonstrate
    from ralm.pipeline import FromRetriever
    from ralm.retrieval.opening import RetrieverOptions

    build_demo_folder(folder)
    model = load_model(lm, dtype, device)
    bm25 = FromRetriever.of_index(folder / INDEX, RetrieverOptions(retriever="bm25"))
    control = FromRetriever.of_index(folder / INDEX, RetrieverOptions(retriever="random"))
    shown = demonstrate(read_text(folder / HELD_OUT), model, bm25, control, limit_tokens=limit_tokens)
    write_page(folder / REPORT, demo_report(shown, model))
    if json:
        print_json({name: reading.as_dict() for name, reading in shown.readings.items()})
    else:
        print_demo(folder, shown, model, bm25)

"""`ralm index`: documents in, a searchable folder out."""

from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options


def index(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Folders of text, .jsonl, .parquet, DPR's .tsv (plain or .gz), saved datasets, or hf:NAME.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.", show_default=False)],
    words: Annotated[int, typer.Option(min=1, help="Words a passage.")] = 100,
    tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of --lm a passage, instead of words.")] = None,
    lm: Annotated[str | None, typer.Option(help="The model whose tokens --tokens counts.")] = None,
    id_field: Annotated[str, typer.Option(help="Field with the id of a document.")] = "id",
    title_field: Annotated[str, typer.Option(help="Field with its title.")] = "title",
    text_field: Annotated[str, typer.Option(help="Field with its text.")] = "text",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out broken lines and count them.")] = False,
    forbidden_titles: Annotated[
        Path | None, typer.Option(help="Leave out documents with these titles, one a line.")
    ] = None,
    decontaminate: Annotated[
        list[Path] | None, typer.Option(help="Leave out passages that overlap this text; may be given again.")
    ] = None,
    ngram: Annotated[int, typer.Option(min=1, help="Words in a row that count as overlap.")] = 13,
    k1: Annotated[float, typer.Option(min=0.0, help="BM25: how soon repeated terms stop counting.")] = 0.9,
    b: Annotated[float, typer.Option(min=0.0, max=1.0, help="BM25: how much long passages are marked down.")] = 0.4,
    force: options.Force = False,
) -> None:
    """Split documents into passages and index them for BM25."""

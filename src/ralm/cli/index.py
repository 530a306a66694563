"""`ralm index`: documents in, a searchable folder out."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from ralm.cli import options
from ralm.errors import UsageError


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
    max_overlap: Annotated[
        float, typer.Option(help="Leave a passage out only if more than this share of its runs of words is shared.")
    ] = 0.0,
    k1: Annotated[float, typer.Option(min=0.0, help="BM25: how soon repeated terms stop counting.")] = 0.9,
    b: Annotated[float, typer.Option(min=0.0, max=1.0, help="BM25: how much long passages are marked down.")] = 0.4,
    force: options.Force = False,
) -> None:
    """Split documents into passages and index them for BM25."""
    from ralm.cli.loading import load_tokenizer
    from ralm.cli.output import print_index
    from ralm.corpus.decontamination import Decontamination, Removals, read_titles
    from ralm.corpus.passages import make_passages
    from ralm.corpus.sources import Fields, SkippedLines, read_documents
    from ralm.corpus.splitting import Splitting
    from ralm.corpus.text import read_text
    from ralm.folders import check_output
    from ralm.retrieval.bm25.formula import BM25Options
    from ralm.retrieval.index import build_index

    if (tokens is None) != (lm is None):
        raise UsageError("--tokens and --lm go together: so many tokens of which model?")
    check_output(out, force)
    splitting = Splitting(words=words, tokens=tokens)
    fields = Fields(id=id_field, title=title_field, text=text_field)
    skipped = SkippedLines() if skip_bad else None
    decontamination = Decontamination.of(
        titles=[] if forbidden_titles is None else read_titles(forbidden_titles),
        texts=[read_text(path) for path in decontaminate or []],
        ngram=ngram,
        max_overlap=max_overlap,
    )
    removals = Removals()
    documents = (document for source in sources for document in read_documents(source, fields, skipped=skipped))
    passages = make_passages(
        documents,
        splitting,
        tokenizer=None if lm is None else load_tokenizer(lm),
        decontamination=decontamination,
        removals=removals,
    )

    def describe() -> dict[str, JsonValue]:
        return {
            "sources": list(sources),
            "splitting": {"words": words} if tokens is None else {"tokens": tokens, "lm": lm},
            "decontamination": decontamination.settings,
            "removed": {"counts": removals.counts(), "list": removals.listed(), "unlisted": removals.unlisted},
            "skipped_lines": skipped.count if skipped else 0,
        }

    manifest = build_index(passages, out, BM25Options(k1=k1, b=b), describe=describe, force=force)
    print_index(out, manifest, removals, skipped)

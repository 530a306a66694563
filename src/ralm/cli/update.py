"""`ralm update` and `ralm merge`: an index whose documents change."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from ralm.cli.corpus import CorpusOptions, read_corpus
from ralm.cli.flags import Flags, kinds_of
from ralm.cli.idle import Use, given_options, refuse_idle
from ralm.corpus.decontamination import Decontamination
from ralm.corpus.documents import Fields
from ralm.corpus.splitting import Splitting
from ralm.errors import UsageError
from ralm.options import Option
from ralm.retrieval.bm25.options import BuildOptions, cores

_CORPUS, _BUILD = CorpusOptions(), BuildOptions()


def update(
    context: typer.Context,
    index: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `ralm index` made.", show_default=False)],
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SOURCE]...", help="Documents to add, as for `ralm index`.", show_default=False),
    ] = None,
    remove: Annotated[Path | None, Option("Remove the documents with these ids (a file with one per line).")] = None,
    remove_id: Annotated[tuple[str, ...], Option("Remove the document with this id; repeatable.")] = (),
    replace_: Annotated[
        bool, Option("Remove documents whose ids are added again; without it, such ids are an error.", flag="replace")
    ] = False,
    corpus: CorpusOptions = _CORPUS,
    build: Annotated[BuildOptions, Flags(default_said={"workers": "one per core"})] = _BUILD,
    device: Annotated[
        str, Option("Dense: where to encode: cpu, cuda, cuda:N, or auto (a GPU if there is one).")
    ] = "auto",
) -> None:
    """Add documents to an index, and remove documents from it, in one step.

    Searching finds the same as in an index that is built at once of what is left. Documents are split, analysed and
    encoded as when the index was built. Programs that have the index open keep the old state. Small segments are merged
    on the way; `ralm merge` merges all.
    """
    from ralm.cli.output import print_update
    from ralm.corpus.decontamination import read_lines
    from ralm.retrieval.dense.options import load_encoder
    from ralm.retrieval.index import open_index
    from ralm.retrieval.update import update_index

    sources = sources or []
    opened = open_index(index)
    settings = opened.manifest.settings
    refuse_idle(
        context,
        *(Use(name, bool(sources), "a SOURCE") for name in ("replace", "device", "workers", *kinds_of(CorpusOptions))),
        *corpus.uses,
        Use("device", bool(opened.vectors), "an index with vectors"),
        Use(build, opened.bm25_options is not None, "an index for BM25"),
    )
    if "workers" not in given_options(context):
        build = replace(build, workers=cores())
    gone = [*remove_id, *(read_lines(remove, "document ids") if remove else [])]
    read = None
    if sources:
        if not given_options(context).keys() & {*kinds_of(Fields), "no_metadata"}:
            corpus = corpus.with_fields_of(opened.manifest)
        decontamination = corpus.read_decontamination()
        _check_decontamination(index, settings.get("decontamination"), decontamination)
        splitting, lm = _splitting(index, settings.get("splitting"))
        built_of = settings.get("sources")
        named = isinstance(built_of, list) and len(built_of) > 1  # a document read again must have the id it had
        read = read_corpus(sources, corpus, splitting, lm, decontamination, named=named)
    manifest = update_index(
        index,
        read.passages if read else (),
        remove=gone,
        replace=replace_,
        encoders={name: load_encoder(opened.encoder_options(name), device=device) for name in opened.vectors if read},
        describe=read.describe_briefly if read else dict,
        build=build,
    )
    print_update(index, manifest, read)


def merge(
    index: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `ralm index` made.", show_default=False)],
    build: Annotated[BuildOptions, Flags(without=("workers",))] = _BUILD,
) -> None:
    """Merge the segments of an index that was updated into one, without the documents that were removed.

    Searching finds the same as before, and caches stay valid. Programs that have the index open keep the old state.
    """
    from ralm.cli.output import print_update
    from ralm.retrieval.writer import merge_index

    print_update(index, merge_index(index, build), None)


def _splitting(index: Path, recorded: JsonValue) -> tuple[Splitting, str | None]:
    """How the passages of an index were split, and the language model whose tokens were counted."""
    match recorded:
        case {"words": int() as words}:
            return Splitting(words=words), None
        case {"tokens": int() as tokens, "lm": str() as lm}:
            return Splitting(tokens=tokens), lm
    raise UsageError(
        f"{index} does not say how its documents were split, since a program built it; add passages to it with "
        "`ralm.update_index`."
    )


def _check_decontamination(index: Path, recorded: JsonValue, given: Decontamination) -> None:
    """Raise UsageError if an index was decontaminated and added documents would not be in the same way."""
    if not isinstance(recorded, dict) or recorded == given.settings:
        return
    titles, ngrams, ngram, overlap = (
        recorded.get(name) for name in ("titles", "evaluation_ngrams", "ngram", "max_overlap")
    )
    if titles or ngrams:
        raise UsageError(
            f"{index} was decontaminated ({titles:,} titles, {ngrams:,} runs of {ngram} words of evaluation texts, "
            f"maximal overlap {overlap}); give the same `forbidden_titles`, `decontaminate`, `ngram` and "
            "`max_overlap`, so that added documents are checked too."
        )

"""`ralm index`: turns documents into a searchable index."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import JsonValue

from ralm.cli import options
from ralm.cli.flags import Flags
from ralm.cli.idle import Use, given_options, refuse_idle
from ralm.controls import path_text
from ralm.corpus.decontamination import Decontamination
from ralm.corpus.fields import Fields
from ralm.corpus.splitting import Splitting
from ralm.errors import UsageError
from ralm.options import Option
from ralm.retrieval.bm25.formula import BM25Options
from ralm.retrieval.bm25.options import BuildOptions, cores
from ralm.retrieval.dense.options import EncoderOptions, VectorOptions

_SPLITTING, _FIELDS, _OVERLAP = Splitting(), Fields(), Decontamination()
_FORMULA, _BUILD, _VECTORS = BM25Options(), BuildOptions(), VectorOptions()
_BM25, _DENSE = '`retriever="bm25"` or `"both"`', '`retriever="dense"` or `"both"`'


def index(
    context: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Folders, files (text, Markdown, JSON Lines, JSON, CSV, DPR's TSV, Parquet, HTML, PDF, DOCX), saved "
            "datasets, or hf:NAME.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, Option("Folder to write.")],
    splitting: Splitting = _SPLITTING,
    lm: Annotated[str | None, Option("Language model whose tokens `tokens` counts.")] = None,
    fields: Fields = _FIELDS,
    no_metadata: Annotated[bool, Option("Keep no field besides id, title and text.")] = False,
    skip_bad: Annotated[
        bool, Option("Skip broken lines of files, and count them; in folders they always are.")
    ] = False,
    forbidden_titles: Annotated[
        Path | None, Option("Leave out documents with these titles (a file with one per line).")
    ] = None,
    decontaminate: Annotated[tuple[Path, ...], Option("Leave out passages that overlap this text; repeatable.")] = (),
    overlap: Decontamination = _OVERLAP,
    analyser: Annotated[
        str, Option("BM25: the language of the text, such as german; cjk for Chinese, Japanese, Korean; or standard.")
    ] = "english",
    formula: BM25Options = _FORMULA,
    build: Annotated[BuildOptions, Flags(default_said={"workers": "one per core"})] = _BUILD,
    retriever: Annotated[
        Literal["bm25", "dense", "both"], Option("Retrieval to index for; both is also needed for hybrid retrieval.")
    ] = "bm25",
    encoding: EncoderOptions | None = None,
    vectors: VectorOptions = _VECTORS,
    device: Annotated[
        str, Option("Dense: where to encode: cpu, cuda, cuda:N, or auto (a GPU if there is one).")
    ] = "auto",
    force: options.Force = False,
) -> None:
    """Split documents into passages and index them for BM25, dense retrieval, or both.

    Finished vectors are kept in a folder beside --out until the index is complete. Rerun the command after an
    interruption to resume.
    """
    from ralm.cli.output import print_index
    from ralm.corpus.decontamination import Removals, read_titles
    from ralm.corpus.passages import make_passages
    from ralm.corpus.sources import LeftOut, read_documents
    from ralm.corpus.text import read_text
    from ralm.folders.outputs import check_output
    from ralm.retrieval.analysis.named import analysis_named
    from ralm.retrieval.dense.loading import load_encoder
    from ralm.retrieval.index import KIND, build_index

    if (encoding is None) != (retriever == "bm25"):
        raise UsageError('`retriever="dense"` or `"both"` and `encoder` go together: neither works without the other.')
    if (splitting.tokens is None) != (lm is None):
        raise UsageError("`tokens` and `lm` go together: give both or neither.")
    if no_metadata and fields.metadata is not None:
        raise UsageError("`no_metadata` and `Fields.metadata` exclude each other: give one of them.")
    if no_metadata:
        fields = replace(fields, metadata=())
    dense = retriever != "bm25"
    refuse_idle(
        context,
        Use(splitting),
        Use("ngram max_overlap", bool(decontaminate), "`decontaminate`"),
        Use("analyser", retriever != "dense", _BM25),
        Use(formula, retriever != "dense", _BM25),
        Use(build, retriever != "dense", _BM25),
        Use(EncoderOptions, dense, _DENSE),
        Use(vectors, dense, _DENSE),
        Use("device", dense, _DENSE),
    )
    analysis_named(analyser)
    if "workers" not in given_options(context):
        build = replace(build, workers=cores())
    check_output(out, kind=KIND, force=force)
    decontamination = Decontamination.of(
        titles=[] if forbidden_titles is None else read_titles(forbidden_titles),
        texts=[read_text(path) for path in decontaminate],
        ngram=overlap.ngram,
        max_overlap=overlap.max_overlap,
    )
    tokenizer = None
    if lm is not None:
        from ralm.lm.named import load_tokenizer

        tokenizer = load_tokenizer(lm)
    removals = Removals()
    left_out = LeftOut()
    documents = read_documents(sources, fields, left_out=left_out, skip_bad=skip_bad)
    passages = make_passages(
        documents,
        splitting,
        tokenizer=tokenizer,
        decontamination=decontamination,
        removals=removals,
    )

    def describe() -> dict[str, JsonValue]:
        return {
            "sources": [path_text(source) for source in sources],
            "splitting": {"words": splitting.words} if lm is None else {"tokens": splitting.tokens, "lm": lm},
            "decontamination": decontamination.settings,
            "removed": {"counts": removals.counts(), "list": removals.listed(), "unlisted": removals.unlisted},
            "left_out": left_out.as_json(),
        }

    manifest = build_index(
        passages,
        out,
        formula,
        bm25=retriever != "dense",
        analyser=analyser,
        encoder=None if encoding is None else load_encoder(encoding, device=device),
        vectors=vectors,
        describe=describe,
        build=build,
        force=force,
    )
    print_index(out, manifest, removals, left_out)

"""`ralm index`: turns documents into a searchable index."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from pydantic import JsonValue

from ralm.cli import options
from ralm.cli.corpus import KINDS, CorpusOptions, read_corpus
from ralm.cli.flags import Flags
from ralm.cli.idle import Use, given_options, refuse_idle
from ralm.corpus.splitting import Splitting
from ralm.errors import UsageError
from ralm.options import Option
from ralm.retrieval.bm25.formula import BM25Options
from ralm.retrieval.bm25.options import BuildOptions, cores
from ralm.retrieval.dense.options import EncoderOptions, VectorOptions

_SPLITTING, _CORPUS = Splitting(), CorpusOptions()
_FORMULA, _BUILD, _VECTORS = BM25Options(), BuildOptions(), VectorOptions()
MOST_SHARDS: Final = 1000
_BM25, _DENSE = '`retriever="bm25"` or `"both"`', '`retriever="dense"` or `"both"`'


def index(
    context: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help=f"Folders, files ({KINDS}), saved datasets, hf:NAME, or URLs such as s3://BUCKET/FOLDER.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, Option("Folder to write.")],
    splitting: Splitting = _SPLITTING,
    lm: Annotated[str | None, Option("Language model whose tokens `tokens` counts.")] = None,
    corpus: CorpusOptions = _CORPUS,
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
    ray: Annotated[
        str | None,
        Option("BM25: build on the Ray cluster at this address, HOST:PORT or auto; `ralm encode` adds vectors on it."),
    ] = None,
    shards: Annotated[int, Option("Ray: parts of the index that machines can search apart.", most=MOST_SHARDS)] = 1,
    parts: Annotated[
        str | None,
        Option(
            "Ray: URL of a folder in an object store, such as s3://BUCKET/FOLDER, for what machines make.",
            default_said="a folder beside the output, on a disk that all share",
        ),
    ] = None,
    force: options.Force = False,
) -> None:
    """Split documents into passages and index them for BM25, dense retrieval, or both.

    Finished vectors, and what the machines of a cluster have done, are kept in a folder beside --out until the index is
    complete. Rerun the command after an interruption to resume.
    """
    from ralm.cli.output import print_index
    from ralm.distributed.loading import ray_extra
    from ralm.retrieval.analysis import analysis_named
    from ralm.retrieval.build import build_index
    from ralm.retrieval.dense.options import load_encoder
    from ralm.retrieval.index import INDEX_KIND
    from ralm.storage.outputs import check_output

    if (encoding is None) != (retriever == "bm25"):
        raise UsageError('`retriever="dense"` or `"both"` and `encoder` go together: neither works without the other.')
    if (splitting.tokens is None) != (lm is None):
        raise UsageError("`tokens` and `lm` go together: give both or neither.")
    dense = retriever != "bm25"
    refuse_idle(
        context,
        Use(splitting),
        *corpus.uses,
        Use("analyser", retriever != "dense", _BM25),
        Use(formula, retriever != "dense", _BM25),
        Use(build, retriever != "dense", _BM25),
        Use(EncoderOptions, dense, _DENSE),
        Use(vectors, dense, _DENSE),
        Use("device", dense, _DENSE),
        Use("shards", ray is not None, "`ray`"),
        Use("parts", ray is not None, "`ray`"),
        Use("workers", ray is None, "one machine; a cluster has its own"),
        Use("ray", not dense, '`retriever="bm25"`: `ralm encode` adds vectors on the cluster afterwards'),
    )
    analysis_named(analyser)
    if "workers" not in given_options(context):
        build = replace(build, workers=cores())
    check_output(out, kind=INDEX_KIND, force=force)
    read = read_corpus(sources, corpus, splitting, lm, corpus.read_decontamination(), named=len(sources) > 1)

    def describe() -> dict[str, JsonValue]:
        split: dict[str, JsonValue] = (
            {"words": splitting.words} if lm is None else {"tokens": splitting.tokens, "lm": lm}
        )
        return {**read.describe(), "splitting": split}

    if ray is None:
        manifest = build_index(
            read.passages,
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
    else:
        with ray_extra():
            from ralm.distributed.indexing import CorpusPlan, build_index_on
        plan = CorpusPlan(
            sources=sources,
            fields=read.fields,
            named=len(sources) > 1,
            skip_bad=corpus.skip_bad,
            splitting=splitting,
            lm=lm,
            decontamination=read.decontamination,
            analyser=analyser,
        )
        manifest = build_index_on(
            ray,
            plan,
            out,
            formula,
            shards=shards,
            parts=parts,
            describe=describe,
            removals=read.removals,
            left_out=read.left_out,
            build=build,
            force=force,
        )
    print_index(out, manifest, read)

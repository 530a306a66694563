"""`ralm index` and `ralm encode`: build an index, and add vectors to it."""

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import JsonValue

import ralm
from ralm.cli import options
from ralm.cli.corpus import KINDS, CorpusOptions, read_corpus
from ralm.cli.flags import Flags
from ralm.cli.models import encoding_on
from ralm.corpus.file_table import FileTableWriter
from ralm.corpus.splitting import Splitting
from ralm.errors import UsageError
from ralm.lm.api.endpoint import ApiOptions, is_api
from ralm.options import Needs, Option
from ralm.retrieval.bm25.formula import BM25Options, BuildOptions
from ralm.retrieval.dense.options import EncoderOptions, VectorOptions

_DEVICE: Final = "Dense: where to encode: cpu, cuda, cuda:N, or auto (a GPU if there is one)."
_BM25: Final = Needs('`retriever="bm25"` or `"both"`', lambda own: own.retriever != "dense")
_DENSE: Final = Needs('`retriever="dense"` or `"both"`', lambda own: own.retriever != "bm25")
_LOCAL: Final = Needs(
    "an `encoder` that runs here", lambda own: own.encoding is not None and not is_api(own.encoding.encoder)
)
_API: Final = Needs("an `encoder` behind an API", lambda own: own.encoding is not None and is_api(own.encoding.encoder))
_API_FLAGS: Final = Flags(without=("tokenizer", "top_logprobs", "context_length", "dry_run"))


def index_command(
    *,
    sources: Annotated[
        list[str],
        options.argument(
            f"Folders, files ({KINDS}), saved datasets, hf:NAME, or URLs such as s3://BUCKET/FOLDER.", "SOURCE..."
        ),
    ],
    out: Annotated[Path, Option("Folder to write.")],
    splitting: Splitting,
    lm: Annotated[str | None, Option("Language model whose tokens `tokens` counts.")] = None,
    corpus: CorpusOptions,
    analyser: Annotated[
        str,
        Option(
            "BM25: the language of the text, such as german; cjk for Chinese, Japanese, Korean; or standard.",
            needs=_BM25,
        ),
    ] = "english",
    formula: Annotated[BM25Options, Option("The formula of BM25.", needs=_BM25)],
    build: Annotated[
        BuildOptions,
        Option("How BM25 is built.", needs=_BM25),
    ],
    retriever: Annotated[
        Literal["bm25", "dense", "both"], Option("Retrieval to index for; both is also needed for hybrid retrieval.")
    ] = "bm25",
    encoding: Annotated[EncoderOptions | None, Option("The encoder.", needs=_DENSE)] = None,
    vectors: Annotated[VectorOptions, Option("How vectors are stored.", needs=_DENSE)],
    device: Annotated[str, Option(_DEVICE, needs=_LOCAL)] = "auto",
    api: Annotated[ApiOptions, Option("How an encoder behind an API is asked.", needs=_API), _API_FLAGS],
    force: options.Force = False,
) -> None:
    """Split documents into passages and index them for BM25, dense retrieval, or both.

    Finished vectors are kept in a folder beside --out until the index is complete. Rerun the command after an
    interruption to resume.

    Example: `ralm index my-documents/ -o my-index`
    """
    from ralm.cli.output import print_index
    from ralm.retrieval.analysis import analysis_by_name
    from ralm.retrieval.index import INDEX_KIND
    from ralm.storage.outputs import check_output

    if (encoding is None) != (retriever == "bm25"):
        raise UsageError('`retriever="dense"` or `"both"` and `encoder` go together: neither works without the other.')
    if (splitting.tokens is None) != (lm is None):
        raise UsageError("`tokens` and `lm` go together: give both or neither.")
    analysis_by_name(analyser)
    check_output(out, kind=INDEX_KIND, force=force)
    table = FileTableWriter(out.absolute().parent, corpus.files_record(sources))
    read = read_corpus(sources, corpus, splitting, lm, table)

    def describe() -> dict[str, JsonValue]:
        by_words: dict[str, JsonValue] = {"words": splitting.words}
        if splitting.split != "words":
            by_words |= {"split": splitting.split, "overlap_words": splitting.overlap_words}
        return {**read.describe(), "splitting": by_words if lm is None else {"tokens": splitting.tokens, "lm": lm}}

    manifest = ralm.build_index(
        read.passages,
        out,
        formula,
        bm25=retriever != "dense",
        analyser=analyser,
        encoder=None if encoding is None else ralm.load_encoder(encoding, device=device, api=api),
        vectors=vectors,
        describe=describe,
        build=build,
        table=table,
        force=force,
    )
    print_index(out, manifest, read)


def encode_command(
    *,
    index: options.IndexArgument,
    encoding: EncoderOptions,
    vectors: Annotated[str, Option("Name of the vectors; an index can have several sets.")] = "main",
    default: Annotated[bool, Option("Search these vectors if `vectors` is not given.")] = True,
    stored: VectorOptions,
    device: Annotated[
        str, Option("Where to encode: cpu, cuda, cuda:N, or auto (a GPU if there is one).", needs=_LOCAL)
    ] = "auto",
    api: Annotated[ApiOptions, Option("How an encoder behind an API is asked.", needs=_API), _API_FLAGS],
    ray: options.Ray = None,
    force: Annotated[bool, options.force_option(None)] = False,
) -> None:
    """Encode the passages of an index and add the vectors to it; its other vectors stay.

    The index changes atomically at the end; programs that have it open keep the old state. Rerun the command after an
    interruption to resume: finished vectors are kept in a folder beside the index.

    Example: `ralm encode my-index --encoder intfloat/e5-small-v2`
    """
    from ralm.cli.output import print_encoded

    encoder = ralm.load_encoder(encoding, device="auto" if ray else device, api=api)
    ahead = encoding_on(ray, device)
    manifest = ralm.add_vectors(index, encoder, stored, name=vectors, default=default, force=force, ahead=ahead)
    print_encoded(index, manifest, vectors)

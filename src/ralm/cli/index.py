"""`ralm index`, `ralm update`, `ralm merge` and `ralm encode`: write an index or change one."""

from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import JsonValue

import ralm
from ralm.cli import options
from ralm.cli.corpus import KINDS, CorpusOptions, read_corpus
from ralm.cli.flags import Flags, Given, option_types
from ralm.cli.models import encoding_on
from ralm.corpus.decontamination import Decontamination
from ralm.corpus.documents import Fields
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
_SOURCES: Final = Needs("a SOURCE", lambda own: bool(own.sources))


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
    named = len(sources) > 1
    table = FileTableWriter(out.absolute().parent, corpus.files_record(sources, named=named))
    read = read_corpus(sources, corpus, splitting, lm, corpus.read_decontamination(), named=named, table=table)

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


def update_command(
    *,
    given: Given,
    index: options.IndexArgument,
    sources: Annotated[
        list[str] | None, options.argument("Documents to add, as for `ralm index`.", "[SOURCE]...")
    ] = None,
    remove: Annotated[Path | None, Option("Remove the documents with these ids (a file with one per line).")] = None,
    remove_id: Annotated[tuple[str, ...], Option("Remove the document with this id; repeatable.")] = (),
    replace_: Annotated[
        bool,
        Option(
            "Remove documents whose ids are added again; without it, such ids are an error.",
            flag="replace",
            needs=_SOURCES,
        ),
    ] = False,
    corpus: Annotated[CorpusOptions, Option("What is added.", needs=_SOURCES)],
    build: Annotated[
        BuildOptions,
        Option(
            "How BM25 is built.",
            needs=Needs("an index for BM25", lambda own: ralm.open_index(own.index).bm25_options is not None),
        ),
    ],
    device: Annotated[
        str,
        Option(
            _DEVICE,
            needs=Needs(
                "a SOURCE and an index with vectors",
                lambda own: bool(own.sources and ralm.open_index(own.index).vectors),
            ),
        ),
    ] = "auto",
) -> None:
    """Add documents to an index, and remove documents from it, in one step.

    Searching finds the same as in an index that is built at once of what is left. Documents are split, analysed and
    encoded as when the index was built. Programs that have the index open keep the old state. Small segments are merged
    on the way; `ralm merge` merges all.
    """
    from ralm.cli.output import print_update
    from ralm.corpus.decontamination import read_lines
    from ralm.corpus.sources import id_prefixes_of

    sources = sources or []
    opened = ralm.open_index(index)
    settings = opened.manifest.settings
    gone = [*remove_id, *(read_lines(remove, "document ids") if remove else [])]
    read = None
    if sources:
        if not given.keys() & {*option_types(Fields), "no_metadata"}:
            corpus = corpus.with_fields_of(opened.manifest)
        decontamination = corpus.read_decontamination()
        _check_decontamination(index, settings.get("decontamination"), decontamination)
        splitting, lm = recorded_splitting(index, settings.get("splitting"))
        built_of = settings.get("sources")
        known = [one for one in built_of if isinstance(one, str)] if isinstance(built_of, list) else []
        named = len(known) > 1  # a document read again must have the id it had
        prefixes = id_prefixes_of(sources, known, in_ids=named)
        read = read_corpus(sources, corpus, splitting, lm, decontamination, named=named, id_prefixes=prefixes)
    manifest = ralm.update_index(
        index,
        read.passages if read else (),
        remove=gone,
        replace=replace_,
        encoders={
            name: ralm.load_encoder(opened.encoder_options(name), device=device) for name in opened.vectors if read
        },
        describe=partial(read.describe, lists_removed=False) if read else dict,
        build=build,
    )
    print_update(index, manifest, read)


def merge_command(index: options.IndexArgument, build: BuildOptions) -> None:
    """Merge the segments of an index that was updated into one, without the documents that were removed.

    Searching finds the same as before, and caches stay valid. Programs that have the index open keep the old state.
    """
    from ralm.cli.output import print_segments

    print_segments(index, ralm.merge_index(index, build))


def recorded_splitting(index: Path, recorded: JsonValue) -> tuple[Splitting, str | None]:
    """How the passages of an index were split, and the language model whose tokens were counted."""
    match recorded:
        case {"split": "sentences" | "structure" as split, "words": int() as words, "overlap_words": int() as overlap}:
            return Splitting(split=split, words=words, overlap_words=overlap), None
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
    """
    from ralm.cli.output import print_encoded

    encoder = ralm.load_encoder(encoding, device="auto" if ray else device, api=api)
    ahead = encoding_on(ray, device)
    manifest = ralm.add_vectors(index, encoder, stored, name=vectors, default=default, force=force, ahead=ahead)
    print_encoded(index, manifest, vectors)

"""`ralm index` builds an index, `ralm encode` adds vectors, and `ralm sync` makes it what its sources are now."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import JsonValue

import ralm
from ralm.cli import options
from ralm.cli.process import encoding_on
from ralm.corpus.decontamination import Decontamination, read_decontamination, read_lines
from ralm.corpus.documents import Fields
from ralm.corpus.file_table import FilesRecord, FileTableWriter
from ralm.corpus.folder import FileSelection
from ralm.errors import UsageError
from ralm.lm.registry import load_tokenizer
from ralm.options import Option
from ralm.retrieval.dense.options import EncoderArguments, VectorOptions
from ralm.terminal import path_text

if TYPE_CHECKING:
    from ralm.retrieval.index import Index

_ENCODER: Final = "Encoder of passages (and of queries): a hub name, folder, or URL#MODEL of an API."
_ARGUMENTS: Final = Option(
    "How the encoder works, such as normalize=true,device=cuda; `ralm help encoder-args` lists the keys.", part="keys"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusOptions:
    """The fields of a record that are kept, and the documents and passages that are skipped."""

    fields: Annotated[Fields, options.FIELDS] = field(default_factory=Fields)
    skip_bad: options.SkipBad = False
    selection: Annotated[FileSelection, Option("")]
    forbidden_titles: Annotated[
        Path | None, Option("Leave out documents with these titles (a file with one per line).")
    ] = None
    decontaminate: Annotated[tuple[Path, ...], Option("Leave out passages that overlap this text; repeatable.")] = ()
    overlap: Annotated[Decontamination, Option("What counts as overlap.")]

    def files_record(self, sources: Sequence[str]) -> FilesRecord:
        """Return what an index records of these sources, so that `ralm sync` reads them again."""
        from ralm.corpus.sources import known_source

        titles = None if self.forbidden_titles is None else str(self.forbidden_titles.absolute())
        return FilesRecord(
            sources=tuple(known_source(source, in_ids=len(sources) > 1) for source in sources),
            skip_bad=self.skip_bad,
            forbidden_titles=titles,
            decontaminate=tuple(str(text.absolute()) for text in self.decontaminate),
            **asdict(self.selection),
        )


def index_command(
    *,
    sources: Annotated[
        list[str],
        options.argument(
            f"Folders, files ({options.KINDS}), saved datasets, hf:NAME, or URLs such as s3://BUCKET/FOLDER.",
            "SOURCE...",
        ),
    ],
    out: Annotated[Path, Option("Folder to write.")],
    splitting: Annotated[ralm.Splitting, Option("How documents are split.")],
    lm: Annotated[str | None, Option("Language model whose tokens `tokens` counts.")] = None,
    corpus: Annotated[CorpusOptions, Option("How files are read.")],
    analyser: Annotated[
        str,
        Option(
            "BM25: the language of the text, such as german; cjk for Chinese, Japanese, Korean; standard; or lucene."
        ),
    ] = "english",
    formula: Annotated[ralm.BM25Options, Option("The formula of BM25.")],
    build: Annotated[ralm.BuildOptions, Option("How BM25 is built.")],
    retriever: Annotated[
        Literal["bm25", "dense", "both"], Option("Retrieval to index for; both is also needed for hybrid retrieval.")
    ] = "bm25",
    encoder: Annotated[str | None, Option(f"Dense: {_ENCODER[0].lower()}{_ENCODER[1:]}")] = None,
    encoder_args: Annotated[EncoderArguments, _ARGUMENTS],
    vectors: Annotated[VectorOptions, Option("How vectors are stored.")],
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

    if (encoder is None) != (retriever == "bm25"):
        raise UsageError('`retriever="dense"` or `"both"` and `encoder` go together: neither works without the other.')
    if (splitting.tokens is None) != (lm is None):
        raise UsageError("`tokens` and `lm` go together: give both or neither.")
    analysis_by_name(analyser)
    check_output(out, kind=INDEX_KIND, force=force)
    table = FileTableWriter(out.absolute().parent, corpus.files_record(sources))
    decontamination = read_decontamination(
        corpus.forbidden_titles, corpus.decontaminate, corpus.overlap.ngram, corpus.overlap.max_overlap
    )
    removals, skipped = ralm.Removals(), ralm.Skipped()
    documents = ralm.read_documents(
        sources, corpus.fields, skipped=skipped, skip_bad=corpus.skip_bad, selection=corpus.selection, table=table
    )
    tokenizer = None if lm is None else load_tokenizer(lm)
    passages = ralm.make_passages(
        documents, splitting, tokenizer=tokenizer, decontamination=decontamination, removals=removals
    )

    def describe() -> dict[str, JsonValue]:
        kept, by_words = corpus.fields.metadata, dict[str, JsonValue](words=splitting.words)
        if splitting.split != "words":
            by_words |= {"split": splitting.split, "overlap_words": splitting.overlap_words}
        return {
            "sources": [path_text(source) for source in sources],
            "fields": {
                **{name: path_text(getattr(corpus.fields, name)) for name in ("id", "title", "text")},
                "metadata": None if kept is None else [path_text(name) for name in kept],
            },
            "decontamination": decontamination.settings,
            "removed": {"counts": removals.counts(), "list": removals.listed(), "unlisted": removals.not_listed},
            "skipped": skipped.as_json(),
            "splitting": by_words if lm is None else {"tokens": splitting.tokens, "lm": lm},
        }

    manifest = ralm.build_index(
        passages,
        out,
        formula,
        bm25=retriever != "dense",
        analyser=analyser,
        encoder=None if encoder is None else encoder_args.load(encoder),
        vectors=vectors,
        describe=describe,
        build=build,
        table=table,
        force=force,
    )
    print_index(out, manifest, removals, skipped)


def encode_command(
    *,
    index: options.IndexArgument,
    encoder: Annotated[str, Option(_ENCODER)],
    encoder_args: Annotated[EncoderArguments, _ARGUMENTS],
    vectors: Annotated[str, Option("Name of the vectors; an index can have several sets.")] = "main",
    default: Annotated[bool, Option("Search these vectors if `vectors` is not given.")] = True,
    stored: Annotated[VectorOptions, Option("How vectors are stored.")],
    ray: Annotated[
        str | None,
        Option("Encode on the Ray cluster at this address, HOST:PORT; auto is the one that this machine belongs to."),
    ] = None,
    force: options.Force = False,
) -> None:
    """Encode the passages of an index and add the vectors to it; its other vectors stay.

    The index changes atomically at the end; programs that have it open keep the old state. Rerun the command after an
    interruption to resume: finished vectors are kept in a folder beside the index.

    Example: `ralm encode my-index --encoder intfloat/e5-small-v2`
    """
    from ralm.cli.output import print_encoded

    here = replace(encoder_args, device="auto") if ray else encoder_args
    ahead = encoding_on(ray, encoder_args.device)
    loaded = here.load(encoder)
    manifest = ralm.add_vectors(index, loaded, stored, name=vectors, default=default, force=force, ahead=ahead)
    print_encoded(index, manifest, vectors)


_EXAMPLES: Final = 5


def sync_command(
    *,
    index: options.IndexArgument,
    sources: Annotated[
        list[str] | None, options.argument("Sources to read alone; the index gets those that are new.", "[SOURCE]...")
    ] = None,
    remove: Annotated[Path | None, Option("Remove the documents with these ids (a file with one per line).")] = None,
    remove_id: Annotated[tuple[str, ...], Option("Remove the document with this id; repeatable.")] = (),
    dry_run: Annotated[bool, Option("Say what would change, and change nothing.")] = False,
    allow_missing: Annotated[bool, Option("Remove the documents of sources that are gone.")] = False,
    build: ralm.BuildOptions,
    device: Annotated[
        str, Option("Dense: where to encode: cpu, cuda, cuda:N, or auto (a GPU if there is one).")
    ] = "auto",
) -> None:
    """Make an index what its sources are now: add new documents, replace changed ones, remove those that are gone.

    The index remembers the sources that `ralm index` read, and how. With a SOURCE, only that one is read, and its
    documents replace those with the same ids. With --remove or --remove-id, no other source is read. Files whose size
    and time did not change are not read. All changes happen in one step; programs that have the index open keep the old
    state.

    Example: `ralm sync my-index`
    """
    from ralm.cli.output import print_sync

    gone = [*remove_id, *(read_lines(remove, "document ids") if remove else [])]
    opened = ralm.open_index(index)
    changes, manifest = ralm.sync_index(
        index,
        ralm.make_passages if gone and not sources else _splitting(opened),
        sources=sources or (),
        remove=gone,
        dry_run=dry_run,
        allow_missing=allow_missing,
        encoder=partial(_load_encoder, opened, device),
        build=build,
    )
    print_sync(index, opened, changes, manifest, examples=_EXAMPLES if dry_run else 0)


def _load_encoder(index: "Index", device: str, vectors: str) -> ralm.Encoder:
    return ralm.load_encoder(index.encoder_options(vectors), device=device)


def _splitting(index: "Index") -> Callable[[Iterable[ralm.Document]], Iterator[ralm.Passage]]:
    """Return the function that splits documents as those of the index were split."""
    lm: str | None = None
    match index.manifest.settings.get("splitting"):
        case {"split": "sentences" | "structure" as split, "words": int() as words, "overlap_words": int() as overlap}:
            splitting = ralm.Splitting(split=split, words=words, overlap_words=overlap)
        case {"words": int() as words}:
            splitting = ralm.Splitting(words=words)
        case {"tokens": int() as tokens, "lm": str() as lm}:
            splitting = ralm.Splitting(tokens=tokens)
        case _:
            raise UsageError(
                f"{index.path} does not say how its documents were split, since a program built it; add passages to it "
                "with `ralm.update_index`."
            )
    return partial(
        ralm.make_passages,
        splitting=splitting,
        tokenizer=None if lm is None else load_tokenizer(lm),
        decontamination=_decontamination(index),
    )


def _decontamination(index: "Index") -> Decontamination:
    """Return the decontamination that the index was built with, from the files that it names."""
    record, recorded = index.settings.files, index.manifest.settings.get("decontamination")
    if record is None or not (record.forbidden_titles or record.decontaminate) or not isinstance(recorded, dict):
        return Decontamination()
    made = read_decontamination(
        Path(record.forbidden_titles) if record.forbidden_titles else None,
        [Path(path) for path in record.decontaminate],
        int(str(recorded["ngram"])),
        float(str(recorded["max_overlap"])),
    )
    if made.settings != recorded:
        files = ", ".join(filter(None, [record.forbidden_titles, *record.decontaminate]))
        raise UsageError(f"{files} changed since {index.path} was decontaminated with it: build the index again.")
    return made

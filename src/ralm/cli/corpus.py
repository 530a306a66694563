"""The options of commands that read a corpus, and how sources become passages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

from pydantic import JsonValue, TypeAdapter, ValidationError

from ralm.cli.options import SkipBad
from ralm.corpus.decontamination import Decontamination
from ralm.corpus.documents import Fields
from ralm.corpus.splitting import Splitting
from ralm.errors import UsageError
from ralm.options import Needs, Option
from ralm.records import Passage
from ralm.storage.manifest import Manifest
from ralm.terminal import path_text

if TYPE_CHECKING:
    from ralm.corpus.decontamination import Removals
    from ralm.corpus.documents import Skipped

KINDS = "text, Markdown, JSON Lines, JSON, CSV, DPR's TSV, Parquet, HTML, PDF, DOCX"
_FIELDS: Final = TypeAdapter(Fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusOptions:
    """The fields of a record that are kept, and the documents and passages that are skipped."""

    fields: Annotated[Fields, Option("Which fields make a document.")] = field(default_factory=Fields)
    no_metadata: Annotated[bool, Option("Keep no field besides id, title and text.")] = False
    skip_bad: SkipBad = False
    forbidden_titles: Annotated[
        Path | None, Option("Leave out documents with these titles (a file with one per line).")
    ] = None
    decontaminate: Annotated[tuple[Path, ...], Option("Leave out passages that overlap this text; repeatable.")] = ()
    overlap: Annotated[
        Decontamination,
        Option("What counts as overlap.", needs=Needs("`decontaminate`", lambda corpus: bool(corpus.decontaminate))),
    ] = field(default_factory=Decontamination)

    def __post_init__(self) -> None:
        if self.no_metadata and self.fields.metadata is not None:
            raise UsageError("`no_metadata` and `Fields.metadata` exclude each other: give one of them.")

    def read_decontamination(self) -> Decontamination:
        """The decontamination, with its files read.

        Raises CorpusError or TextError if one cannot be read.
        """
        from ralm.corpus.decontamination import read_titles
        from ralm.corpus.files import read_text

        return Decontamination.of(
            titles=[] if self.forbidden_titles is None else read_titles(self.forbidden_titles),
            texts=[read_text(path) for path in self.decontaminate],
            ngram=self.overlap.ngram,
            max_overlap=self.overlap.max_overlap,
        )

    def with_fields_of(self, manifest: Manifest) -> Self:
        """The same with the fields that an index was built with, if it records them."""
        try:
            return replace(self, fields=_FIELDS.validate_python(manifest.settings["fields"]))
        except (KeyError, ValidationError):
            return self


@dataclass(frozen=True, slots=True, eq=False)
class ReadCorpus:
    """The passages of a corpus, to be read once; afterwards, the skipped documents and removed passages."""

    passages: Iterator[Passage]
    removals: "Removals"
    skipped: "Skipped"
    sources: Sequence[str]
    fields: Fields
    decontamination: Decontamination

    def describe(self) -> dict[str, JsonValue]:
        """The corpus in the manifest of a new index, after it was read."""
        removals = self.removals
        return self._described({"list": removals.listed(), "unlisted": removals.not_listed})

    def describe_briefly(self) -> dict[str, JsonValue]:
        """The same for an update, without the list of removed passages: a manifest has many updates."""
        return self._described({})

    def _described(self, removed: dict[str, JsonValue]) -> dict[str, JsonValue]:
        return {
            "sources": [path_text(source) for source in self.sources],
            "fields": _as_json(self.fields),
            "decontamination": self.decontamination.settings,
            "removed": {"counts": self.removals.counts(), **removed},
            "skipped": self.skipped.as_json(),
        }


def _as_json(fields: Fields) -> dict[str, JsonValue]:
    """The fields for a manifest, which holds only UTF-8."""
    kept = fields.metadata
    return {
        "id": path_text(fields.id),
        "title": path_text(fields.title),
        "text": path_text(fields.text),
        "metadata": None if kept is None else [path_text(name) for name in kept],
    }


def read_corpus(
    sources: Sequence[str],
    options: CorpusOptions,
    splitting: Splitting,
    lm: str | None,
    decontamination: Decontamination,
    *,
    named: bool,
) -> ReadCorpus:
    """The passages of sources. `lm` is the language model whose tokens `splitting` counts; `named` makes the ids of
    documents begin with their source."""
    from ralm.corpus.decontamination import Removals
    from ralm.corpus.sources import Skipped, read_documents
    from ralm.corpus.splitting import make_passages

    tokenizer = None
    if lm is not None:
        from ralm.lm.registry import load_tokenizer

        tokenizer = load_tokenizer(lm)
    removals, skipped = Removals(), Skipped()
    fields = replace(options.fields, metadata=()) if options.no_metadata else options.fields
    documents = read_documents(sources, fields, skipped=skipped, skip_bad=options.skip_bad, source_in_ids=named)
    passages = make_passages(
        documents, splitting, tokenizer=tokenizer, decontamination=decontamination, removals=removals
    )
    return ReadCorpus(passages, removals, skipped, sources, fields, decontamination)

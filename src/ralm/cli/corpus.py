"""The options of commands that read a corpus."""

import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import ralm
from ralm.cli.options import FIELDS, SkipBad, SkippedFile
from ralm.corpus.decontamination import Decontamination, read_decontamination
from ralm.corpus.documents import Fields
from ralm.corpus.file_table import FilesRecord
from ralm.corpus.folder import FileSelection
from ralm.options import Needs, Option

if TYPE_CHECKING:
    from ralm.corpus.documents import Skipped

KINDS = (
    "text, Markdown, YAML, JSON Lines, JSON, CSV, DPR's TSV, Parquet, HTML, PDF, DOCX, XLSX, PPTX, notebooks, e-mail"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusOptions:
    """The fields of a record that are kept, and the documents and passages that are skipped."""

    fields: Annotated[Fields, FIELDS] = field(default_factory=Fields)
    skip_bad: SkipBad = False
    skipped: SkippedFile = None
    selection: Annotated[FileSelection, Option("Which files of folders are read, and how.")]
    forbidden_titles: Annotated[
        Path | None, Option("Leave out documents with these titles (a file with one per line).")
    ] = None
    decontaminate: Annotated[tuple[Path, ...], Option("Leave out passages that overlap this text; repeatable.")] = ()
    overlap: Annotated[
        Decontamination,
        Option("What counts as overlap.", needs=Needs("`decontaminate`", lambda corpus: bool(corpus.decontaminate))),
    ]

    def read_decontamination(self) -> Decontamination:
        """The decontamination, with its files read.

        Raises CorpusError or TextError if one cannot be read.
        """
        overlap = self.overlap
        return read_decontamination(self.forbidden_titles, self.decontaminate, overlap.ngram, overlap.max_overlap)

    def files_record(self, sources: Sequence[str]) -> FilesRecord:
        """What an index records of these sources, so that `ralm sync` reads them again."""
        from ralm.corpus.sources import known_source

        titles = None if self.forbidden_titles is None else str(self.forbidden_titles.absolute())
        return FilesRecord(
            sources=tuple(known_source(one, in_ids=len(sources) > 1) for one in sources),
            skip_bad=self.skip_bad,
            forbidden_titles=titles,
            decontaminate=tuple(str(one.absolute()) for one in self.decontaminate),
            **asdict(self.selection),
        )


def counting_skipped(listing: Path | None) -> "Skipped":
    """Counts what is skipped, and lists it in a new file if one is named.

    Raises OSError if the file cannot be written.
    """
    if listing is None:
        return ralm.Skipped()
    stream = listing.open("w", encoding="utf-8", errors="surrogateescape")
    skipped = ralm.Skipped(listing=stream)
    weakref.finalize(skipped, stream.close)
    return skipped

"""`ralm sync`: makes an index what its sources are now."""

import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import ralm
from ralm.cli import options, process
from ralm.cli.corpus import counting_skipped
from ralm.cli.index import recorded_splitting
from ralm.corpus.decontamination import Decontamination, read_decontamination
from ralm.errors import CorpusError, FolderExistsError, UsageError
from ralm.lm.registry import load_tokenizer
from ralm.options import Option
from ralm.retrieval.bm25.formula import BuildOptions

if TYPE_CHECKING:
    from ralm.corpus.documents import Skipped
    from ralm.retrieval.index import Index

_EXAMPLES: Final = 5


def sync_command(
    *,
    index: options.IndexArgument,
    sources: Annotated[
        list[str] | None, options.argument("New sources, which the index gets too.", "[SOURCE]...")
    ] = None,
    dry_run: Annotated[bool, Option("Say what would change, and change nothing.")] = False,
    allow_missing: Annotated[bool, Option("Remove the documents of sources that are gone.")] = False,
    skipped: options.SkippedFile = None,
    watch: Annotated[float | None, Option("Seconds after which to do it again, until interrupted.", minimum=1)] = None,
    build: BuildOptions,
    device: Annotated[
        str, Option("Dense: where to encode: cpu, cuda, cuda:N, or auto (a GPU if there is one).")
    ] = "auto",
) -> None:
    """Make an index what its sources are now: add new documents, replace changed ones, remove those that are gone.

    The index remembers the sources that `ralm index` read, and how. Files whose size and time did not change are not
    read. All changes happen in one step; programs that have the index open keep the old state.
    """
    again = False
    while True:
        try:
            counted = counting_skipped(skipped)
            _sync(
                index, sources or [], build, device, counted, dry_run=dry_run, allow_missing=allow_missing, silent=again
            )
        except (CorpusError, FolderExistsError) as error:  # a file or an index is being written: try later
            if not again:
                raise
            process.print_error(process.with_flags(str(error), {"allow_missing": "--allow-missing"}))
        if watch is None:
            return
        again = True
        sys.stdout.flush()
        time.sleep(watch)


def _sync(
    path: Path,
    sources: list[str],
    build: BuildOptions,
    device: str,
    skipped: "Skipped",
    *,
    dry_run: bool,
    allow_missing: bool,
    silent: bool,
) -> None:
    """Make an index what its sources are, and print the changes; if `silent`, print nothing without a change."""
    from ralm.cli.output import print_sync

    opened = ralm.open_index(path)
    splitting, lm = recorded_splitting(path, opened.manifest.settings.get("splitting"))
    split = partial(
        ralm.make_passages,
        splitting=splitting,
        tokenizer=None if lm is None else load_tokenizer(lm),
        decontamination=_decontamination(opened),
    )
    changes, manifest = ralm.sync_index(
        path,
        split,
        sources=sources,
        dry_run=dry_run,
        allow_missing=allow_missing,
        encoder=lambda name: ralm.load_encoder(opened.encoder_options(name), device=device),
        build=build,
        skipped=skipped,
    )
    if changes or not silent:
        print_sync(path, opened, changes, manifest, examples=_EXAMPLES if dry_run else 0)


def _decontamination(index: "Index") -> Decontamination:
    """The decontamination that the index was built with, from the files that it names."""
    from ralm.retrieval import layout

    record, recorded = layout.files_record(index.manifest), index.manifest.settings.get("decontamination")
    if record is None or not (record.forbidden_titles or record.decontaminate) or not isinstance(recorded, dict):
        return Decontamination()
    made = read_decontamination(
        Path(record.forbidden_titles) if record.forbidden_titles else None,
        [Path(one) for one in record.decontaminate],
        int(str(recorded["ngram"])),
        float(str(recorded["max_overlap"])),
    )
    if made.settings != recorded:
        files = ", ".join(filter(None, [record.forbidden_titles, *record.decontaminate]))
        raise UsageError(f"{files} changed since {index.path} was decontaminated with it: build the index again.")
    return made

"""Finds the files of known kinds below a folder or behind a URL, in the order of their paths."""

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Final

from pathspec import GitIgnoreSpec

from ralm.corpus import documents, files
from ralm.corpus.formats import SUFFIXES, is_known
from ralm.errors import CorpusError, UsageError
from ralm.options import Option, check_options
from ralm.storage.remote import remote_files_below
from ralm.terminal import path_text

HUB_PREFIX: Final = "hf:"
"""Prefix of a source that is a dataset of the Hugging Face hub."""
SAVED: Final = ("state.json", "dataset_dict.json")
"""A file of every dataset that `datasets` saved, and of every folder of such."""
_BROKEN_LINKS: Final = {errno.ENOENT: "a link to nothing", errno.ELOOP: "a link to itself"}


@cache
def _spec(patterns: Sequence[str]) -> GitIgnoreSpec:
    try:
        return GitIgnoreSpec.from_lines(patterns)
    except (ValueError, re.error) as error:
        raise UsageError(f"`include` and `exclude` take patterns of .gitignore; correct this one: {error}.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSelection:
    """Which files of folders are read, and how; UsageError for a wrong pattern, suffix or encoding."""

    include: Annotated[
        tuple[str, ...],
        Option("Of folders, read only files that match this pattern of .gitignore; repeatable.", default_text="all"),
    ] = ()
    exclude: Annotated[
        tuple[str, ...],
        Option("Of folders, leave out files that match this pattern; repeatable.", default_text="none"),
    ] = ()
    read_as: Annotated[
        tuple[str, ...],
        Option(
            "Read files of one suffix as those of another, such as .log=.txt, or =.txt for files without a suffix; "
            "repeatable.",
            default_text="none",
        ),
    ] = ()

    encoding: Annotated[
        str | None,
        Option("Encoding of text files that are not UTF-8, UTF-16 or UTF-32, such as cp1252.", default_text="none"),
    ] = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.encoding is not None:
            files.check_encoding(self.encoding)
        _spec((*self.include, *self.exclude))
        for pair in self.read_as:
            suffix, is_pair, target = pair.partition("=")
            if not is_pair or target not in SUFFIXES or not (suffix == "" or suffix.startswith(".")):
                raise UsageError(f"`read_as` must be like .log=.txt, with one of {', '.join(SUFFIXES)}, not {pair!r}.")

    def suffix(self, name: str) -> str:
        """Return the suffix, without .gz, by which a file is read; empty if it is of an unknown kind."""
        written = files.suffix_of(name)
        suffix = dict(pair.lower().split("=") for pair in self.read_as).get(written, written)
        return suffix if is_known(suffix, gzipped=name.lower().endswith(files.GZIP)) else ""

    def choose(self, path: str, below: str, *, is_empty: bool, skipped: documents.Skipped) -> str:
        """Return the suffix by which to read a file, which is at `below` in the folder; empty if it is left out."""
        suffix = self.suffix(below.rpartition("/")[2])
        if self._leaves_out(below):
            skipped.add(documents.NOT_CHOSEN, path)
        elif not suffix:
            skipped.add(documents.UNKNOWN, path)
            skipped.kinds[files.suffix_of(below)] += 1
        elif is_empty:
            skipped.add(documents.EMPTY_FILES, path)
        else:
            return suffix
        return ""

    def reads(self, below: str) -> bool:
        """Return whether a file at `below` in the folder is read, if it is not empty."""
        return bool(self.suffix(below.rpartition("/")[2])) and not self._leaves_out(below)

    def count_unmatched(self, chosen: Sequence[str], source: str, skipped: documents.Skipped) -> None:
        """Count the patterns of `include` that match none of the files of a source that are read."""
        for pattern in self.include:
            if not pattern.startswith("!") and not any(map(_spec((pattern,)).match_file, chosen)):
                skipped.add(documents.UNMATCHED, f"{pattern} in {source}")

    def _leaves_out(self, below: str) -> bool:
        include, exclude = tuple(self.include), tuple(self.exclude)
        return bool(include and not _spec(include).match_file(below)) or _spec(exclude).match_file(below)


ALL_FILES: Final = FileSelection()


def files_below(
    folder: str, skipped: documents.Skipped, selection: FileSelection = ALL_FILES
) -> Iterator[tuple[str, str]]:
    """Yield the paths of the files of known kinds below a folder, in order, each with its suffix without .gz.

    Links are followed, except those to what is read anyway. `skipped` counts what is left out. Raises CorpusError if
    the folder itself cannot be read.
    """
    try:
        below = [_entries(folder)]
    except OSError as error:
        raise CorpusError(f"{folder} cannot be read: {error.strerror}.") from None
    root, seen = Path(os.path.realpath(folder)), {_identity(Path(folder).stat())}
    while below:
        entry = next(below[-1], None)
        if entry is None:
            below.pop()
            continue
        name = path_text(entry.path)
        if entry.name.startswith("."):
            skipped.add(documents.HIDDEN, name)
            continue
        try:
            status = entry.stat()
            is_folder = stat.S_ISDIR(status.st_mode)
            if (is_folder or entry.is_symlink()) and (why := _why_not(entry, status, root, seen, selection)):
                skipped.add(documents.LINKS, f"{name} ({why})")
            elif is_folder:
                below.append(_entries(entry.path))
            else:
                path = entry.path.removeprefix(folder).lstrip(os.sep)
                is_empty = stat.S_ISREG(status.st_mode) and not status.st_size
                if suffix := selection.choose(name, path, is_empty=is_empty, skipped=skipped):
                    yield entry.path, suffix
        except OSError as error:
            if what := _BROKEN_LINKS.get(error.errno or 0) if entry.is_symlink() else None:
                skipped.add(documents.LINKS, f"{name} ({what})")
            else:
                skipped.add(documents.BROKEN_FILES, f"{name} cannot be read: {error.strerror}")


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return iter(sorted(entries, key=lambda entry: entry.name))


def _why_not(
    entry: os.DirEntry[str], status: os.stat_result, root: Path, seen: set[tuple[int, int]], selection: FileSelection
) -> str:
    """Return why a folder or the target of a link is not read; empty, and noted as `seen`, if it is."""
    if entry.is_symlink():
        target = Path(os.path.realpath(entry.path))
        below = target.relative_to(root).parts if target.is_relative_to(root) else (".",)
        is_read = stat.S_ISDIR(status.st_mode) or selection.reads("/".join(below))
        if is_read and not any(part.startswith(".") for part in below):
            return "leads to what is read anyway"
        if Path(os.path.realpath(os.path.dirname(entry.path))).is_relative_to(target):  # noqa: PTH120
            return "leads to a folder that contains it"
    if _identity(status) in seen:
        return "was read already"
    seen.add(_identity(status))
    return ""


def files_behind_url(
    url: str, begin: str, skipped: documents.Skipped, selection: FileSelection = ALL_FILES
) -> Iterator[files.File]:
    """Yield the files of known kinds below a URL, in the order of their paths; their ids begin with `begin`."""
    for path, file in remote_files_below(url):
        if any(part.startswith(".") for part in path.split("/")):
            skipped.add(documents.HIDDEN, path_text(str(file)))
        elif suffix := selection.choose(path_text(str(file)), path, is_empty=file.size == 0, skipped=skipped):
            name = f"{begin}/{path}" if begin else path
            yield files.File(file, name, f"{name}:", suffix=suffix, encoding=selection.encoding)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino

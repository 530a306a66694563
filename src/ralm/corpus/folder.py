"""Finds the files of known kinds and the saved datasets below a folder or behind a URL, in the order of their paths."""

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from pathspec import GitIgnoreSpec, RegexPattern

from ralm.corpus import documents, files
from ralm.corpus.formats import SUFFIXES, is_known
from ralm.errors import CorpusError, UsageError
from ralm.options import Option, check_options
from ralm.storage.remote import RemoteFile, remote_files_below
from ralm.terminal import path_text

HUB_PREFIX: Final = "hf:"
"""Prefix of a source that is a dataset of the Hugging Face hub."""
SAVED_DATASET: Final = "state.json"
"""A file of every dataset that `datasets` saved."""
SAVED_SPLITS: Final = "dataset_dict.json"
"""A file of every folder of saved datasets."""
_LINEAR: Final = (
    (r"\[\^(?!/)", "[^/"),
    (r"\[\^/\]\*((?:\[\^/|[^/])*?)(?=\[\^/\]\*)", r"(?>[^/]*?\1)"),
    (r"(?s)\^\(\?:\.\+/\)\?(.*?)(?=\(\?:/\.\+\)\?)", r"^(?>(?:.+?/)??\1(?=/))"),
    (r"(?s)\(\?:/\.\+\)\?(.*?)(?=\(\?:/\.\+\)\?)", r"(?>(?:/.+?)??\1(?=/))"),
)
"""Changes of the regular expression of a pattern: no class has a slash, and `*` before another `*` in a name, or `**`
before another `**`, takes the first place where what follows fits, and never goes back."""
_BROKEN_LINKS: Final = {errno.ENOENT: "a link to nothing", errno.ELOOP: "a link to itself"}


class Found(NamedTuple):
    """The path of a file of a known kind, or of a saved dataset, and the suffix by which the file is read, without
    .gz."""

    path: str
    is_dataset: bool
    suffix: str = ""


def _spec(patterns: Sequence[str]) -> GitIgnoreSpec:
    """Return the patterns in a form that matches in linear time; UsageError if one is invalid."""
    try:
        spec = GitIgnoreSpec.from_lines(patterns)
    except (ValueError, re.error) as error:
        raise UsageError(f"`include` and `exclude` take patterns of .gitignore; correct this one: {error}.") from None
    for pattern in spec.patterns:
        if isinstance(pattern, RegexPattern) and pattern.regex is not None:
            regex = pattern.regex.pattern
            for old, new in _LINEAR:
                regex = re.sub(old, new, regex)
            pattern.regex = re.compile(regex)
    return spec


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSelection:
    """Which files of folders are read, by patterns as in .gitignore, and how files of other suffixes are read.

    Raises UsageError if a suffix is not that of a known format, or a pattern is none.
    """

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

    def __post_init__(self) -> None:
        check_options(self)
        _spec((*self.include, *self.exclude))
        for one in self.read_as:
            suffix, is_pair, known = one.partition("=")
            if not is_pair or known not in SUFFIXES or not (suffix == "" or suffix.startswith(".")):
                raise UsageError(f"`read_as` must be like .log=.txt, with one of {', '.join(SUFFIXES)}, not {one!r}.")

    def suffix(self, name: str, path: Path | None = None) -> str:
        """The suffix by which a file with this name is read, without .gz; that of no known kind if it is not read. If
        it has none, the content of the file at `path` decides."""
        own = files.suffix_of(name)
        found = dict(one.lower().split("=") for one in self.read_as).get(own, own)
        return files.kind_of_content(path) if not found and path is not None and "." not in name else found


def is_read(name: str, suffix: str) -> bool:
    """Whether a file with this name is read by this suffix: it is of a known format, and packed only if it may be."""
    return is_known(f"file{suffix}{files.GZIP if name.lower().endswith(files.GZIP) else ''}")


ALL_FILES: Final = FileSelection()


class _Patterns:
    """The patterns of a selection, for one folder, and those that no file has matched yet."""

    def __init__(self, selection: FileSelection) -> None:
        self._include = {one: _spec([one]) for one in selection.include}
        self._exclude = _spec(selection.exclude)
        self._unmatched = {*selection.include}

    def choose(self, path: str) -> bool:
        """Whether they choose a file, given its path below the folder."""
        matched = {pattern for pattern, spec in self._include.items() if spec.match_file(path)}
        self._unmatched -= matched
        return bool(matched or not self._include) and not self._exclude.match_file(path)

    def check(self, folder: str) -> None:
        """Raise CorpusError if a pattern matched no file."""
        if self._unmatched:
            raise CorpusError(f"{folder} has no file that matches {min(self._unmatched)!r}: correct the pattern.")


def files_below(folder: str, skipped: documents.Skipped, selection: FileSelection = ALL_FILES) -> Iterator[Found]:
    """The files of known kinds and the saved datasets below a folder, in the order of their paths, part by part.

    Links are followed, except links to folders that contain the link or that are read anyway. Counts in `skipped` the
    links that lead to nothing new, hidden files and folders, empty files, files of unknown kinds, unreadable ones, and
    those that `selection` leaves out. Raises CorpusError if the folder itself cannot be read, or a pattern matches no
    file.
    """
    walk = _Walk(folder, skipped, selection)
    try:
        below = [_entries(folder)]
    except OSError as error:
        raise CorpusError(f"{folder} cannot be read: {error.strerror}.") from None
    while below:
        entry = next(below[-1], None)
        if entry is None:
            below.pop()
        elif (status := walk.status(entry)) is None:
            continue
        elif not stat.S_ISDIR(status.st_mode):
            if suffix := walk.reads_as(entry, status):
                yield Found(entry.path, False, suffix)
        elif walk.enters(entry, status):
            if os.path.isfile(os.path.join(entry.path, SAVED_DATASET)):  # noqa: PTH113, PTH118  (of a million names)
                yield Found(entry.path, True)
                continue
            try:
                below.append(_entries(entry.path))
            except OSError as error:
                skipped.add(documents.BROKEN_FILES, f"{path_text(entry.path)} cannot be read: {error.strerror}")
    walk.patterns.check(folder)


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return iter(sorted(entries, key=lambda entry: entry.name))


class _Walk:
    """Decides which entries of folders are read, and counts those that are skipped."""

    def __init__(self, folder: str, skipped: documents.Skipped, selection: FileSelection) -> None:
        self.patterns = _Patterns(selection)
        self._folder = folder
        self._selection = selection
        self._root = os.path.realpath(folder)
        self._skipped = skipped
        self._seen = {_identity(Path(folder).stat())}

    def status(self, entry: os.DirEntry[str]) -> os.stat_result | None:
        """The status of an entry, or of the target of a link; None if it is hidden or cannot be read."""
        name = path_text(entry.path)
        if entry.name.startswith("."):
            self._skipped.add(documents.HIDDEN, name)
            return None
        try:
            return entry.stat()
        except OSError as error:
            if what := _BROKEN_LINKS.get(error.errno or 0):
                self._skipped.add(documents.LINKS, f"{name} ({what})")
            else:
                self._skipped.add(documents.BROKEN_FILES, f"{name} cannot be read: {error.strerror}")
            return None

    def enters(self, entry: os.DirEntry[str], status: os.stat_result) -> bool:
        """Whether to read a folder."""
        why = self._why_not_followed(entry.path) if entry.is_symlink() else ""
        if not why and _identity(status) in self._seen:
            why = "was read already"
        if why:
            self._skipped.add(documents.LINKS, f"{path_text(entry.path)} ({why})")
            return False
        self._seen.add(_identity(status))
        return True

    def reads_as(self, entry: os.DirEntry[str], status: os.stat_result) -> str:
        """The suffix by which to read a file; empty if it is not read."""
        if not self.patterns.choose(entry.path.removeprefix(self._folder).lstrip(os.sep)):
            self._skipped.add(documents.NOT_CHOSEN, path_text(entry.path))
            return ""
        is_file = stat.S_ISREG(status.st_mode)
        suffix = self._selection.suffix(entry.name, Path(entry.path) if is_file and status.st_size else None)
        is_empty = is_file and status.st_size == 0
        found = _is_read(entry.name, suffix, entry.path, self._skipped, is_empty=is_empty)
        return suffix if found and entry.name != SAVED_SPLITS else ""

    def _why_not_followed(self, link: str) -> str:
        target = os.path.realpath(link)
        if _is_within(os.path.realpath(os.path.dirname(link)), target):  # noqa: PTH120
            return "leads to a folder that contains it"
        if not _is_within(target, self._root):
            return ""
        hidden = any(part.startswith(".") for part in Path(target).relative_to(self._root).parts)
        return "" if hidden else "leads to a folder that is read anyway"


def files_behind_url(
    url: str, skipped: documents.Skipped, selection: FileSelection = ALL_FILES
) -> Iterator[tuple[str, RemoteFile]]:
    """The files of known kinds below a folder behind a URL, in the order of their paths, each with its path in it.

    Counts in `skipped` the same as `files_below`; there are no links. Raises CorpusError if the folder cannot be
    listed, or holds a dataset that `datasets` saved, or a pattern matches no file.
    """
    patterns = _Patterns(selection)
    for path, file in remote_files_below(url):
        if any(part.startswith(".") for part in path.split("/")):
            skipped.add(documents.HIDDEN, path_text(str(file)))
        elif file.name in (SAVED_DATASET, SAVED_SPLITS):
            raise CorpusError(
                f"{file}: a dataset that `datasets` saved is read from a disk only; copy its folder there."
            )
        elif not patterns.choose(path):
            skipped.add(documents.NOT_CHOSEN, path_text(str(file)))
        elif _is_read(file.name, selection.suffix(file.name), str(file), skipped, is_empty=file.size == 0):
            yield path, file
    patterns.check(url)


def _is_read(name: str, suffix: str, path: str, skipped: documents.Skipped, *, is_empty: bool) -> bool:
    """Whether a file is of a known kind and not empty; otherwise it is counted as skipped."""
    if not is_read(name, suffix):
        skipped.add_unknown(path_text(path), files.suffix_of(name))
    elif is_empty:
        skipped.add(documents.EMPTY_FILES, path_text(path))
    else:
        return True
    return False


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino

"""Finds the files of known kinds and the saved datasets below a folder or behind a URL, in the order of their paths."""

import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from pathspec import GitIgnoreSpec, RegexPattern

from ralm.corpus import documents, files
from ralm.corpus.formats import SUFFIXES, is_known
from ralm.errors import CorpusError, UsageError
from ralm.options import Option, check_options
from ralm.storage.remote import remote_files_below
from ralm.terminal import path_text

_PAGES: Final = (".html", ".htm", ".xhtml")
_PAGE_TEXTS: Final = (".txt", ".md", ".rst", ".ipynb")
_SOURCES: Final = "/_sources/"
"""Where Sphinx puts the texts that it makes pages of."""
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
"""Changes of a pattern's regular expression: no class has a slash, and a `*` or `**` before another never goes back."""
_BROKEN_LINKS: Final = {errno.ENOENT: "a link to nothing", errno.ELOOP: "a link to itself"}


class Found(NamedTuple):
    """A file of a known kind, or a saved dataset; `suffix`, without .gz, tells how the file is read."""

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

    def suffix(self, name: str, path: Path | None = None) -> str:
        """Return the suffix, without .gz, by which a file is read; without any, by the content at `path`, or empty."""
        written = files.suffix_of(name)
        suffix = dict(pair.lower().split("=") for pair in self.read_as).get(written, written)
        if not suffix and path is not None and "." not in name:
            suffix = files.kind_of_content(path)
        return suffix if is_known(suffix, gzipped=name.lower().endswith(files.GZIP)) else ""


ALL_FILES: Final = FileSelection()


class _Choice:
    """Chooses files of a folder by a selection, and counts those that it leaves out."""

    def __init__(self, selection: FileSelection, skipped: documents.Skipped) -> None:
        self._selection = selection
        self._skipped = skipped
        self._include = {pattern: _spec([pattern]) for pattern in selection.include}
        self._exclude = _spec(selection.exclude)
        self._unmatched = {*selection.include}

    def suffix(self, path: str, below: str, *, is_empty: bool, content: Path | None = None) -> str:
        """Return the suffix by which to read a file, which is at `below` in the folder; empty if it is left out."""
        matched = {pattern for pattern, spec in self._include.items() if spec.match_file(below)}
        self._unmatched -= matched
        name = os.path.basename(below)  # noqa: PTH119  (of a million names)
        if (self._include and not matched) or self._exclude.match_file(below):
            self._skipped.add(documents.NOT_CHOSEN, path)
        elif not (suffix := self._selection.suffix(name, content)):
            self._skipped.add_unknown(path, files.suffix_of(name))
        elif is_empty:
            self._skipped.add(documents.EMPTY_FILES, path)
        else:
            return suffix
        return ""

    def reads(self, below: Path, path: Path) -> bool:
        """Return whether a file, which is at `below` in the folder, is not left out."""
        named = not self._include or any(spec.match_file(below) for spec in self._include.values())
        return named and not self._exclude.match_file(below) and bool(self._selection.suffix(path.name, path))

    def check(self, folder: str) -> None:
        """Raise CorpusError if a pattern matched no file."""
        if self._unmatched:
            raise CorpusError(f"{folder} has no file that matches {min(self._unmatched)!r}: correct the pattern.")


def files_below(folder: str, skipped: documents.Skipped, selection: FileSelection = ALL_FILES) -> Iterator[Found]:
    """Yield the files of known kinds and the saved datasets below a folder, in the order of their paths.

    Links are followed, except links to folders that contain the link, and to what is read anyway. `skipped` counts what
    is left out. Raises CorpusError if the folder itself cannot be read, or a pattern matches no file.
    """
    choice, walk = _Choice(selection, skipped), _Walk(folder, skipped)
    try:
        below = [_entries(folder)]
    except OSError as error:
        raise CorpusError(f"{folder} cannot be read: {error.strerror}.") from None
    while below:
        entry = next(below[-1], None)
        if entry is None:
            below.pop()
        elif (status := walk.status(entry)) is None or not walk.follows(entry, status, choice):
            continue
        elif not stat.S_ISDIR(status.st_mode):
            is_file, path = stat.S_ISREG(status.st_mode), entry.path.removeprefix(folder).lstrip(os.sep)
            content = Path(entry.path) if is_file and status.st_size else None
            is_empty = is_file and not status.st_size
            suffix = choice.suffix(path_text(entry.path), path, is_empty=is_empty, content=content)
            if suffix and entry.name != SAVED_SPLITS:
                yield Found(entry.path, False, suffix)
        elif walk.enters(entry, status):
            if os.path.isfile(os.path.join(entry.path, SAVED_DATASET)):  # noqa: PTH113, PTH118  (of a million names)
                yield Found(entry.path, True)
                continue
            try:
                below.append(_entries(entry.path))
            except OSError as error:
                skipped.add(documents.BROKEN_FILES, f"{path_text(entry.path)} cannot be read: {error.strerror}")
    choice.check(folder)


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return iter(sorted(entries, key=lambda entry: entry.name))


class _Walk:
    """Decides which entries of folders are looked at, and counts the others."""

    def __init__(self, folder: str, skipped: documents.Skipped) -> None:
        self._root = os.path.realpath(folder)
        self._skipped = skipped
        self._seen = {_identity(Path(folder).stat())}

    def status(self, entry: os.DirEntry[str]) -> os.stat_result | None:
        """Return the status of an entry, or of the target of a link; None if it is hidden or cannot be read."""
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
        """Return whether to read a folder."""
        return self._is_new(entry, status, self._why_not_followed(entry.path) if entry.is_symlink() else "")

    def follows(self, entry: os.DirEntry[str], status: os.stat_result, choice: _Choice) -> bool:
        """Return whether to read what is no link to a file, or leads to one that is not read anyway."""
        if not entry.is_symlink() or stat.S_ISDIR(status.st_mode):
            return True
        target = Path(os.path.realpath(entry.path))
        below = self._shown_below(target)
        is_read = below is not None and choice.reads(below, target)
        return self._is_new(entry, status, "leads to a file that is read anyway" if is_read else "")

    def _is_new(self, entry: os.DirEntry[str], status: os.stat_result, why_not: str) -> bool:
        if not why_not and _identity(status) in self._seen:
            why_not = "was read already"
        if why_not:
            self._skipped.add(documents.LINKS, f"{path_text(entry.path)} ({why_not})")
            return False
        self._seen.add(_identity(status))
        return True

    def _shown_below(self, target: Path) -> Path | None:
        """Return the path of a file or folder below the folder that is read; None if it is elsewhere or hidden."""
        below = target.relative_to(self._root) if target.is_relative_to(self._root) else None
        return None if below is None or any(part[0] == "." for part in below.parts) else below

    def _why_not_followed(self, link: str) -> str:
        target = Path(os.path.realpath(link))
        if Path(os.path.realpath(os.path.dirname(link))).is_relative_to(target):  # noqa: PTH120
            return "leads to a folder that contains it"
        return "" if self._shown_below(target) is None else "leads to a folder that is read anyway"


def texts_beside_pages(paths: Iterable[str]) -> Counter[str]:
    """Count the texts that pages of HTML are made of, by the pattern of `exclude` that leaves them out."""
    texts: dict[str, str] = {}
    pages: set[str] = set()
    for path in paths:
        stem, suffix = os.path.splitext(path)  # noqa: PTH122  (of a million names)
        if suffix in _PAGES:
            pages.add(stem)
        elif suffix in _PAGE_TEXTS and _SOURCES in stem:
            texts[os.path.splitext(stem)[0].replace(_SOURCES, "/")] = _SOURCES[1:]  # noqa: PTH122
        elif suffix in _PAGE_TEXTS:
            texts[stem] = f"*{suffix}"
    return Counter(pattern for stem, pattern in texts.items() if stem in pages)


def files_behind_url(
    url: str, begin: str, skipped: documents.Skipped, selection: FileSelection = ALL_FILES
) -> Iterator[files.File]:
    """Yield the files of known kinds below a URL, in the order of their paths; their ids begin with `begin`."""
    choice = _Choice(selection, skipped)
    for path, file in remote_files_below(url):
        if any(part.startswith(".") for part in path.split("/")):
            skipped.add(documents.HIDDEN, path_text(str(file)))
        elif file.name in (SAVED_DATASET, SAVED_SPLITS):
            raise CorpusError(
                f"{file}: a dataset that `datasets` saved is read from a disk only; copy its folder there."
            )
        elif suffix := choice.suffix(path_text(str(file)), path, is_empty=file.size == 0):
            name = f"{begin}/{path}" if begin else path
            yield files.File(file, name, f"{name}:", suffix=suffix, encoding=selection.encoding)
    choice.check(url)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino

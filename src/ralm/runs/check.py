"""Checks that a folder that ralm wrote is whole: an index, a run or a sweep. Every byte is read.

Knows which check each kind needs; knows nothing of what the files mean.
"""

from dataclasses import dataclass
from pathlib import Path

from ralm.errors import DamagedFolderError, UsageError
from ralm.folders.manifest import kind_of, read_every_byte
from ralm.retrieval import index
from ralm.runs import run


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check found: what is `damaged`, a few words each, and the files of which only samples could be compared,
    since the folder was written before checksums of whole files were kept."""

    kind: str
    damaged: tuple[str, ...]
    sampled: tuple[str, ...]


def check_folder(folder: Path | str) -> Checked:
    """Check an index, a run or a sweep: the checksum of every file, and of an index and a run that what they hold fits
    together.

    Raises NotAFolderOfThisKindError if the folder is none of these, and DamagedFolderError, OlderFormatError or
    NewerFormatError if its manifest is not to be believed.
    """
    folder = Path(folder)
    kind = kind_of(folder)
    if kind == index.KIND:
        damaged, sampled = index.check_index(folder)
    else:
        damaged, sampled = read_every_byte(folder, kind)
        if kind == run.KIND and not damaged:
            damaged = _opening(folder)
    return Checked(kind=kind, damaged=tuple(damaged), sampled=tuple(sampled))


def _opening(folder: Path) -> list[str]:
    """The damage that opening a run finds. A run without a baseline has no report, but is not damaged."""
    try:
        run.open_run(folder)
    except DamagedFolderError as error:
        return [str(error)]
    except UsageError:
        return []
    return []

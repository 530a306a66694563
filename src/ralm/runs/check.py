"""Checks that a folder written by ralm is complete. Reads every byte.

Knows which check each kind needs; knows nothing of what the files mean.
"""

from dataclasses import dataclass
from pathlib import Path

from ralm.errors import DamagedFolderError, UsageError
from ralm.retrieval import index
from ralm.runs import run
from ralm.storage.manifest import check_every_byte, kind_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of a check: what is `damaged`, in a few words each, and the `sampled` files.

    Only samples of `sampled` files could be compared: their folder was written before ralm kept checksums of whole
    files.
    """

    kind: str
    damaged: tuple[str, ...]
    sampled: tuple[str, ...]


def check_folder(folder: Path | str) -> Checked:
    """Check the checksums of all files of a folder that ralm wrote, and that the contents of an index or run are
    consistent.

    Raises NotAFolderOfThisKindError if the folder is none of these, and DamagedFolderError, OlderFormatError or
    NewerFormatError if its manifest cannot be trusted.
    """
    folder = Path(folder)
    kind = kind_of(folder)
    if kind == index.INDEX_KIND:
        damaged, sampled = index.check_index(folder)
    else:
        damaged, sampled = check_every_byte(folder, kind)
        if kind == run.KIND and not damaged:
            damaged = _opening(folder)
    return Checked(kind=kind, damaged=tuple(damaged), sampled=tuple(sampled))


def _opening(folder: Path) -> list[str]:
    """The damage found by opening a run. A run without a baseline has no report, but is not damaged."""
    try:
        run.open_run(folder)
    except DamagedFolderError as error:
        return [str(error)]
    except UsageError:
        return []
    return []

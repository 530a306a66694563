"""How an index of BM25 is built; cheap to import, since it knows nothing of how that is done."""

import os
from dataclasses import dataclass
from typing import Annotated, Final

from ralm.options import Option, check_options

MOST_MEGABYTES: Final = 1 << 20
MOST_WORKERS: Final = 1024
_BYTES_A_TERM: Final = 24


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """`megabytes`: memory for terms before they are written to disk, and for merging; the vocabulary needs more on top.
    `workers`: processes that analyse the passages; 1 is this process only.

    A script that uses several workers must guard its code with `if __name__ == "__main__"`, as with any use of
    multiprocessing. Raises UsageError if a value is invalid.
    """

    megabytes: Annotated[
        float,
        Option(
            "BM25: megabytes for buffered postings; the vocabulary needs more on top.",
            most=MOST_MEGABYTES,
            above=True,
            flag="memory",
        ),
    ] = 256
    workers: Annotated[int, Option("BM25: processes that analyse a large corpus.", most=MOST_WORKERS)] = 1

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def buffered_terms(self) -> int:
        """Terms in the buffer, and postings merged at a time."""
        return max(1, int(self.megabytes * 1e6 / _BYTES_A_TERM))

"""How an index of BM25 is built; knows nothing of how it is done, so that a command line can name it at once."""

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
    """`megabytes`: memory for terms on their way to the disk, and for merging them; the vocabulary comes on top.
    `workers`: processes that analyse the passages, or 1 for this process alone.

    A script that asks for more workers must guard what it runs with `if __name__ == "__main__"`, as for any other use
    of several processes. Raises UsageError if a number makes no sense.
    """

    megabytes: Annotated[
        float,
        Option(
            "BM25: megabytes for postings on their way to the disk; the vocabulary comes on top.",
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

"""What a corpus of 21 million, 300 million and 3 billion passages costs, from what was measured (docs/cluster.md).

    python -m benchmarks.cluster_cost [--price 0.05]

Measures nothing. Every figure that it begins from stands in `FIGURES`, with the page that has it and the words there.
Prints the tables of docs/cluster.md, in hours of one processor. `--price` is that of such an hour.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from benchmarks.collection import WIKIPEDIA
from ralm.corpus.spans import SPAN_BYTES
from ralm.retrieval.bm25.kernels import MAX_PASSAGES

PRICE: Final = 0.05
"""Of an hour of one processor, in any currency: a round assumption."""


class Figure(NamedTuple):
    """What was measured, the page that says so, and the words there, which contain the value."""

    value: float
    page: str
    words: str


_BM25_PAGE: Final = "docs/bm25.md"
_SPEED_PAGE: Final = "docs/speed.md"
LONGER: Final = 4 / 3
"""Passages of 100 words take a third more space and time than the synthetic ones of 69 words (docs/bm25.md)."""
FIGURES: Final = {
    "passages": Figure(240_000, "LOG.md", "240,000 different passages of 69 words"),
    "parts": Figure(9.8, "LOG.md", "as 8 parts 9.8 and 9.5"),
    "join": Figure(6.6, "LOG.md", "joining them 6.6 and 6.3"),
    "spans": Figure(0.3, "LOG.md", "finding and hashing the spans 0.3 and 0.2"),
    "index": Figure(15_394, _BM25_PAGE, "| 21,015,324, predicted | 709 | 29,600 | 15,394 | 5,944 |"),
    "postings": Figure(5_944, _BM25_PAGE, "| 21,015,324, predicted | 709 | 29,600 | 15,394 | 5,944 |"),
    "terms": Figure(213_709, _BM25_PAGE, "the 213,709 terms of the [real text](speed.md#bm25)"),
    "terms of": Figure(250_539, _SPEED_PAGE, "| real, 250,539 |"),
    "terms grow": Figure(0.53, _BM25_PAGE, "the number of terms of the Britannica grows as N to the power of 0.53"),
    "start": Figure(220, _SPEED_PAGE, "| 150,000 | 220 | 293 |"),
    "stream, k = 1": Figure(0.161, _SPEED_PAGE, "| **0.161** |"),
    "stream grows, k = 1": Figure(0.88, _SPEED_PAGE, "as N to the power of 0.88 (k = 1)"),
    "stream, k = 16": Figure(0.254, _SPEED_PAGE, "| **0.254** |"),
    "stream grows, k = 16": Figure(0.68, _SPEED_PAGE, "and 0.68 (k = 16)"),
    "layout": Figure(2.0, _SPEED_PAGE, "2.0 GB for the layout of common terms and 0.1 GB each"),
    "stream": Figure(5, _BM25_PAGE, "keeps 5 bytes per passage"),
    "encoded": Figure(29, "docs/results.md", "29 per second on this core"),
    "dimensions": Figure(384, "docs/results.md", "all-MiniLM-L6-v2 (384 dimensions"),
}
_STREAMS_AT: Final = 2_000_000
_BUFFER: Final = 256
"""Megabytes: the default of `--memory`."""
_BYTES_A_TERM: Final = 200
"""Of the vocabulary while parts are joined: a string, its number, an entry of a dict and of two lists. Counted; LOG.md
has a trial."""
_JOINED: Final = 64
"""Folders that are joined at once (`ralm.distributed.indexing`)."""
_FLOAT32, _FLOAT16, _INT32, _INT64 = 4, 2, 4, 8


@dataclass(frozen=True)
class Size:
    """A corpus, the indexes for BM25 that it takes, and the shards of each."""

    passages: int
    indexes: int
    shards: int

    def __post_init__(self) -> None:
        assert self.passages <= self.indexes * MAX_PASSAGES, "BM25 cannot number them"

    @property
    def shard(self) -> float:
        """The passages of a shard."""
        return self.passages / self.indexes / self.shards


SIZES: Final = (Size(WIKIPEDIA, 1, 1), Size(300_000_000, 1, 16), Size(3_000_000_000, 2, 64))


def per_passage(name: str) -> float:
    """Seconds for a passage of what the log gives for 240,000."""
    return FIGURES[name].value / FIGURES["passages"].value


def bytes_per_passage(name: str) -> float:
    """Of a file that docs/bm25.md gives in megabytes for Wikipedia's passages, if these had 69 words."""
    return FIGURES[name].value * 1e6 / WIKIPEDIA * LONGER


def terms(passages: float) -> float:
    """Distinct terms of so many passages."""
    return FIGURES["terms"].value * (passages / FIGURES["terms of"].value) ** FIGURES["terms grow"].value


def spans(passages: float) -> float:
    """Spans of about 32 MB; a passage has as many bytes in JSON Lines as in the store of passages."""
    return passages * (bytes_per_passage("index") - bytes_per_passage("postings")) / SPAN_BYTES


def rounds(size: Size) -> int:
    """How often all passages of a shard are copied by joining: 64 folders become one at a time."""
    return max(1, math.ceil(math.log(spans(size.shard), _JOINED)))


def seconds(passages: float, rounds: int) -> float:
    """Processor seconds of building an index."""
    analysed = LONGER * (per_passage("parts") + rounds * per_passage("join"))
    return passages * (analysed + per_passage("spans"))  # spans were measured with passages of 100 words


def joining_gb(size: Size) -> float:
    """The most memory of a task that joins: the vocabulary, the number of each term in each folder, the number of each
    passage, the buffer, and what a process holds at first."""
    most, passages = 0.0, size.shard / spans(size.shard)
    for _ in range(rounds(size)):
        folders = min(_JOINED, math.ceil(size.shard / passages))
        passages = min(passages * _JOINED, size.shard)
        most = max(most, terms(passages) * (_BYTES_A_TERM + _INT64 * folders) + passages * _INT32)
    return most / 1e9 + (_BUFFER + FIGURES["start"].value) / 1e3


def machine(processors: int) -> dict[str, str]:
    """A row: what processors that build an index for BM25, with two rounds of joining, do together."""
    a_second = processors / seconds(1, 2)
    index, text = bytes_per_passage("index"), bytes_per_passage("index") - bytes_per_passage("postings")
    return {
        "processors": str(processors),
        "passages a second": two(a_second),
        "read, MB/s": two(a_second * (2 * text + 2 * index) / 1e6),
        "written, MB/s": two(a_second * 3 * index / 1e6),
        "memory, GB": two(processors * joining_gb(SIZES[0])),
        "passages encoded a second": two(processors * FIGURES["encoded"].value),
    }


def building(size: Size, price: float) -> dict[str, str]:
    """A row: an index for BM25."""
    hours = seconds(size.passages, rounds(size)) / 3600
    index_gb = size.passages * bytes_per_passage("index") / 1e9
    return {
        "passages": f"{size.passages:,}",
        "indexes x shards": f"{size.indexes} x {size.shards}",
        "spans": two(spans(size.passages)),
        "rounds of joining": str(rounds(size)),
        "processor hours": two(hours),
        "price": two(hours * price),
        "memory of a task that joins, GB": two(joining_gb(size)),
        "index, GB": two(index_gb),
        "disk meanwhile, GB": two(index_gb * (1 + rounds(size))),
    }


def encoding(size: Size, price: float) -> dict[str, str]:
    """A row: vectors."""
    hours = size.passages / FIGURES["encoded"].value / 3600
    numbers = size.passages * FIGURES["dimensions"].value
    return {
        "passages": f"{size.passages:,}",
        "processor hours": two(hours),
        "price": two(hours * price),
        "vectors (`Flat`), GB": two(numbers * _FLOAT32 / 1e9),
        "in 16 bits (`SQfp16`), GB": two(numbers * _FLOAT16 / 1e9),
    }


def searching(size: Size, price: float) -> dict[str, str]:
    """A row: queries of strides, in a stream for each shard."""
    hours = {k: per_query(size, k) * 1e6 / 1e3 / 3600 for k in (1, 16)}
    return {
        "passages": f"{size.passages:,}",
        "milliseconds a query, k = 1": two(per_query(size, 1)),
        "k = 16": two(per_query(size, 16)),
        "processor hours for a million, k = 16": two(hours[16]),
        "price": two(hours[16] * price),
        "postings (memory-mapped), GB": two(size.passages * bytes_per_passage("postings") / 1e9),
        "layout of common terms, GB": two(size.passages * FIGURES["layout"].value / WIKIPEDIA),
        "each stream, GB": two(size.passages * FIGURES["stream"].value / 1e9),
    }


def per_query(size: Size, k: int) -> float:
    """Processor milliseconds for a query: those of all shards. A stream of a shard grows with the shard."""
    growth = (size.shard / _STREAMS_AT) ** FIGURES[f"stream grows, k = {k}"].value
    return FIGURES[f"stream, k = {k}"].value * growth * size.shards * size.indexes


def two(value: float) -> str:
    """A number with two digits that count: more would say more than is known."""
    return f"{float(f'{value:.2g}'):,.10g}"


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows with the same columns, as Markdown."""
    names, *lines = ("| " + " | ".join(cells) + " |\n" for cells in ([*rows[0]], *([*row.values()] for row in rows)))
    return names + "|" + "---|" * len(rows[0]) + "\n" + "".join(lines)


def tables(price: float = PRICE) -> dict[str, str]:
    """All tables, by what they are about."""
    return {
        "a machine": table([machine(processors) for processors in (1, 16, 64)]),
        "building an index for BM25": table([building(size, price) for size in SIZES]),
        "encoding": table([encoding(size, price) for size in SIZES]),
        "searching with BM25": table([searching(size, price) for size in SIZES]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--price", type=float, default=PRICE)
    for title, text in tables(parser.parse_args().price).items():
        print(f"{title}\n\n{text}")


if __name__ == "__main__":
    main()

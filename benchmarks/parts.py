"""What building an index in parts costs in processor time, compared with building it at once (docs/cluster.md).

    python -m benchmarks.parts [--passages 240000] [--parts 8] [--rounds 2]

Passages of the synthetic collection, in this process alone. Each part is analysed and written apart, as a machine of a
cluster does; then all are joined into one shard. Seconds are those of the process, for each round.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks import synthetic
from benchmarks.api.material import print_table
from ralm.records import Passage
from ralm.retrieval.analysis import ENGLISH
from ralm.retrieval.bm25.formula import BuildOptions
from ralm.retrieval.build import build_index, join_parts, write_part

BUILD = BuildOptions()


def seconds(work: Callable[[], object]) -> float:
    """Processor seconds."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measure(folder: Path, passages: list[Passage], parts: int) -> dict[str, object]:
    """A row of the table."""
    size = -(-len(passages) // parts)
    spans = [
        [replace(one, number=number) for number, one in enumerate(passages[begin : begin + size])]
        for begin in range(0, len(passages), size)
    ]
    folders = [folder / f"part-{number}" for number in range(len(spans))]
    shard = folder / "shard"
    for one in (*folders, shard):
        one.mkdir()

    def write() -> None:
        for one, span in zip(folders, spans, strict=True):
            write_part(one, span, ENGLISH, BUILD)

    whole = seconds(lambda: build_index(passages, folder / "whole", build=BUILD))
    apart = seconds(write)
    joined = seconds(
        lambda: join_parts([(one, len(span)) for one, span in zip(folders, spans, strict=True)], shard, BUILD)
    )
    return {"at once": whole, "parts": apart, "joined": joined, "ratio": (apart + joined) / whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=240_000)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    texts = synthetic.collection(args.passages).texts()
    passages = [Passage(number, str(number), "", text) for number, text in enumerate(texts)]
    rows = []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(Path(folder), passages, args.parts))
    print_table(rows)


if __name__ == "__main__":
    main()

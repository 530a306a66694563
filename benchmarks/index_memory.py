"""What building an index needs in memory: ten times the passages, the same peak.

    python -m benchmarks.index_memory [PASSAGES] [SOURCE.jsonl.gz]

Builds an index of this many passages (default 15,000) and one of ten times as many, each in its own process. Prints
peak resident memory, its ratio to that of the smaller index, processor time and bytes per posting. Buffers are so small
that both builds spill. Reads the Encyclopaedia Britannica beside the checkout, or generates words if it is missing.
"""

import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from time import process_time

import numpy as np

from benchmarks.peak_memory import peak_megabytes
from ralm.corpus.splitting import split_by_words
from ralm.records import Passage
from ralm.retrieval.bm25.formula import BuildOptions
from ralm.retrieval.build import build_index

BRITANNICA = Path(__file__).parents[2] / "shared" / "data" / "britannica" / "edition4.jsonl.gz"
PASSAGES = 15_000
BUILD = BuildOptions(megabytes=12)
WORDS = 100


def texts_of(source: Path) -> Iterator[str]:
    with gzip.open(source, "rt", encoding="utf-8") as stream:
        for line in stream:
            yield from (piece.text for piece in split_by_words(json.loads(line)["text"], WORDS))


def made_up_texts() -> Iterator[str]:
    rng = np.random.default_rng(0)
    while True:
        yield " ".join(f"w{word}" for word in (rng.zipf(1.3, WORDS) % 1_000_000).tolist())


def measure(passages: int, source: Path) -> dict[str, float]:
    """Build an index of this many passages in this process."""
    texts = texts_of(source) if source.exists() else made_up_texts()
    numbered = (Passage(number=i, document_id="", title="", text=text) for i, text in zip(count(), texts, strict=False))
    with tempfile.TemporaryDirectory() as folder:
        # Compile or load the kernels before the clock starts.
        build_index([Passage(number=0, document_id="", title="", text="warm up")], Path(folder) / "first")
        before = peak_megabytes()
        begin = process_time()
        manifest = build_index(islice(numbered, passages), Path(folder) / "index", build=BUILD)
        seconds = process_time() - begin
        size = sum(file.stat().st_size for file in (Path(folder) / "index" / "bm25").iterdir())
    peak = peak_megabytes()
    return {
        "passages": manifest.counts["passages"],
        "before": before,
        "peak": peak,
        "seconds": seconds,
        "bytes": size / manifest.counts["postings"],
    }


def measured_apart(passages: int, source: Path) -> dict[str, float]:
    """The same in its own process, so that the peak is its own."""
    command = [sys.executable, "-m", "benchmarks.index_memory", "--measure", str(passages), str(source)]
    row: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return row


def main(arguments: list[str]) -> None:
    passages = int(arguments[0]) if arguments else PASSAGES
    source = Path(arguments[1]) if len(arguments) > 1 else BRITANNICA
    print(f"source: {source.name if source.exists() else 'made-up words'}; buffer of {BUILD.megabytes} MB\n")
    print("passages  start MB  peak MB  ratio  cpu s  passages/s  bytes a posting")
    first = None
    for row in (measured_apart(passages * factor, source) for factor in (1, 10)):
        first = first or row
        print(
            f"{row['passages']:8,.0f}  {row['before']:8.0f}  {row['peak']:7.0f}  {row['peak'] / first['peak']:5.2f}  "
            f"{row['seconds']:5.1f}  {row['passages'] / row['seconds']:10,.0f}  {row['bytes']:15.2f}",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(int(sys.argv[2]), Path(sys.argv[3]))))
    else:
        main(sys.argv[1:])

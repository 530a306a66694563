"""What indexing costs as the corpus grows, and a prediction for the 21 million passages of DPR's Wikipedia.

    python -m benchmarks.index_curve [PASSAGES ...]

Runs `ralm index` on these numbers of passages of the synthetic collection (default 100,000, 500,000 and 2,000,000).
Prints seconds of processor time, bytes on disk, and the peak of resident memory; then extrapolates a line through the
two largest, since smaller ones do not fill the buffers.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import synthetic
from benchmarks.collection import WIKIPEDIA

SIZES = [100_000, 500_000, 2_000_000]
COLUMNS = ("seconds", "index MB", "BM25 MB", "peak MB")


def write_corpora(folder: Path, sizes: list[int]) -> None:
    """Write a JSON-lines file for each size."""
    for size in sizes:
        with (folder / f"{size}.jsonl").open("w") as file:
            for number, text in enumerate(synthetic.collection(size).texts()):
                file.write(json.dumps({"id": str(number), "title": "", "text": text}) + "\n")


def measure(folder: Path, size: int) -> tuple[float, ...]:
    """Index one file; returns what it cost."""
    out = folder / f"index-{size}"
    before, peak = resource.getrusage(resource.RUSAGE_CHILDREN), 0.0
    command = [sys.executable, "-m", "ralm", "index", str(folder / f"{size}.jsonl"), "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, resident(process.pid))
            time.sleep(0.05)
    assert process.returncode == 0, command
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    bm25 = sum(file.stat().st_size for file in (out / "bm25").iterdir())
    whole = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    return seconds, whole / 1e6, bm25 / 1e6, peak


def resident(process: int) -> float:
    """Megabytes that a process holds, without the files that it maps."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
        return int(status["RssAnon"].split()[0]) * 1024 / 1e6
    except (OSError, KeyError):  # the process has just ended
        return 0.0


def main() -> None:
    sizes = [int(argument) for argument in sys.argv[1:]] or SIZES
    print(f"{'passages':>12}" + "".join(f"{column:>12}" for column in COLUMNS) + "   passages a second")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_corpora(folder, sizes)
        rows = []
        for size in sizes:
            rows.append(measure(folder, size))
            numbers = "".join(f"{number:12,.1f}" for number in rows[-1])
            print(f"{size:12,}{numbers}   {size / rows[-1][0]:,.0f}", flush=True)
    if len(sizes) > 1:
        grows = [row[:-1] for row in rows[-2:]]  # memory does not, but for the vocabulary
        lines = [np.polyfit(sizes[-2:], column, 1) for column in zip(*grows, strict=True)]
        print(f"{WIKIPEDIA:12,}" + "".join(f"{np.polyval(line, WIKIPEDIA):12,.0f}" for line in lines) + "   predicted")


if __name__ == "__main__":
    main()

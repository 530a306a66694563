"""Commands on a Ray cluster of one machine against the same commands without it: seconds and memory.

    python -m benchmarks.cluster [--passages 500000] [--strides 2000] [--jobs index eval]

The cluster is one node of this machine, with all of its processors and with one. Seconds are those of the whole command
by the clock: it loads itself, connects, and its workers load what they need. Starting the cluster is not in them.
`start` is what the same command takes for almost nothing (100 passages, two strides), and the last column compares
without it. Memory is the peak of the resident set of the command, and of the largest worker; what all processes share
is in both.
`index` builds an index for BM25 of passages of the synthetic collection; `eval` scores the held-out text of the
demonstration with ralm-tiny and the first passage of BM25, stride 4, in windows that slide.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from ray.cluster_utils import Cluster

from benchmarks import synthetic
from benchmarks.api.material import print_table
from ralm.demo.demonstration import HELD_OUT, INDEX, build_demo_folder

_SECONDS = 0.2
_STRIDE = 4
_FEW = 100


class Peaks(threading.Thread):
    """The peak memory, in MB, of a process and of the largest worker of the cluster, watched until `stop`."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self.command = self.worker = 0.0
        self._process = process
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(_SECONDS):
            self.command = max(self.command, _peak(self._process))
            workers = [_peak(one) for one in _workers()]
            self.worker = max(self.worker, *workers, 0.0)

    def stop(self) -> None:
        self._ended.set()
        self.join()


def _workers() -> Iterator[int]:
    """The processes that do tasks of a cluster."""
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and (folder / "cmdline").read_bytes().startswith(b"ray::"):
                yield int(folder.name)
        except OSError:  # it has ended
            continue


def _peak(process: int) -> float:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


@contextmanager
def node(processors: int) -> Iterator[str]:
    """The address of a cluster of one node."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": processors, "include_dashboard": False})
    try:
        yield started.address
    finally:
        started.shutdown()  # type: ignore[no-untyped-call]


def measure(name: str, command: list[str], out: Path) -> dict[str, object]:
    """A row: what a command takes."""
    begin = time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", "ralm", *command, "--out", str(out), "--force"]) as running:
        peaks = Peaks(running.pid)
        peaks.start()
        assert running.wait() == 0
        seconds = time.perf_counter() - begin
        peaks.stop()
    return {"": name, "seconds": seconds, "command, MB": peaks.command, "largest worker, MB": peaks.worker}


def compare(job: str, small: list[str], command: list[str], folder: Path) -> None:
    """Print the rows of a job, without a cluster, with all processors of a node, and with one; `small` is the job with
    almost nothing to do."""
    every = os.cpu_count() or 1
    begin = measure("", small, folder / "small")["seconds"]
    rows = [{**measure(f"{job}, no cluster", command, folder / "plain"), "start": begin}]
    for processors in dict.fromkeys([every, 1]):
        with node(processors) as address:
            ray = ["--ray", address]
            begin = measure("", [*small, *ray], folder / "small")["seconds"]
            name = f"{job}, a node of {processors}"
            rows.append({**measure(name, [*command, *ray], folder / "clustered"), "start": begin})
    figures = [(float(str(row["seconds"])), float(str(row["start"]))) for row in rows]
    plain, plain_start = figures[0]
    for row, (seconds, begin) in zip(rows, figures, strict=True):
        row["to no cluster"] = seconds / plain
        row["without start"] = (seconds - begin) / (plain - plain_start)
    print_table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=500_000)
    parser.add_argument("--strides", type=int, default=2000)
    parser.add_argument("--jobs", nargs="+", choices=("index", "eval"), default=("index", "eval"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if "index" in args.jobs:
            corpus = folder / "corpus.jsonl"
            with corpus.open("w", encoding="utf-8") as stream:
                for number, text in enumerate(synthetic.collection(args.passages).texts()):
                    stream.write(json.dumps({"id": str(number), "text": text}) + "\n")
            few = folder / "few.jsonl"
            with corpus.open(encoding="utf-8") as stream:
                few.write_text("".join(islice(stream, _FEW)), encoding="utf-8")
            compare("index", ["index", str(few)], ["index", str(corpus)], folder)
        if "eval" in args.jobs:
            build_demo_folder(folder / "demo")
            command = ["eval", str(folder / "demo" / HELD_OUT), "--index", str(folder / "demo" / INDEX)]
            command += ["--lm", "ralm-tiny", "--stride", str(_STRIDE), "--limit-tokens"]
            compare("eval", [*command, str(2 * _STRIDE)], [*command, str(_STRIDE * args.strides)], folder)


if __name__ == "__main__":
    main()

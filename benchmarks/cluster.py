"""An evaluation on a Ray cluster of one machine against the same command without it: seconds and memory.

    python -m benchmarks.cluster [--strides 2000]

The cluster is one node of this machine, with all of its processors and with one. Seconds are those of the whole command
by the clock: it loads itself, connects, and its workers load what they need. Starting the cluster is not in them.
`start` is what the same command takes for two strides, and the last column compares without it. Memory is the peak of
the resident set of the command, and of the largest worker; what all processes share is in both. The held-out text of
the demonstration is scored with ralm-tiny and the first passage of BM25, stride 4, in windows that slide.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ray.cluster_utils import Cluster

from benchmarks.api.material import print_table
from ralm.demo.demonstration import HELD_OUT, INDEX, build_demo_folder

_SECONDS = 0.2
_STRIDE = 4


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


def compare(small: list[str], command: list[str], folder: Path) -> None:
    """Print the rows of a command, without a cluster, with all processors of a node, and with one; `small` is the same
    with almost nothing to do."""
    every = os.cpu_count() or 1
    begin = measure("", small, folder / "small")["seconds"]
    rows = [{**measure("no cluster", command, folder / "plain"), "start": begin}]
    for processors in dict.fromkeys([every, 1]):
        with node(processors) as address:
            ray = ["--lm-args", f"ray={address}"]
            begin = measure("", [*small, *ray], folder / "small")["seconds"]
            name = f"a node of {processors}"
            rows.append({**measure(name, [*command, *ray], folder / "clustered"), "start": begin})
    figures = [(float(str(row["seconds"])), float(str(row["start"]))) for row in rows]
    plain, plain_start = figures[0]
    for row, (seconds, begin) in zip(rows, figures, strict=True):
        row["to no cluster"] = seconds / plain
        row["without start"] = (seconds - begin) / (plain - plain_start)
    print_table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strides", type=int, default=2000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        build_demo_folder(folder / "demo")
        command = ["eval", str(folder / "demo" / HELD_OUT), "--index", str(folder / "demo" / INDEX)]
        command += ["--lm", "ralm-tiny", "--stride", str(_STRIDE), "--limit-tokens"]
        compare([*command, str(2 * _STRIDE)], [*command, str(_STRIDE * args.strides)], folder)


if __name__ == "__main__":
    main()

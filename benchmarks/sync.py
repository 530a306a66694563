"""The processor time of `ralm sync` after a few of many files changed, beside that of indexing all.

    python -m benchmarks.sync TEXT [--files 13000] [--changed 100]

Writes files of 500 to 5,000 words of TEXT, such as WikiText's, and indexes them. Then it adds, edits and removes files,
`--changed` in all, and syncs: with `--dry-run`, then in earnest, then with nothing left to do. The times are those of
the commands, start included.
"""

import argparse
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

WORDS = (500, 5000)


def show(*arguments: object) -> None:
    """Run a command of `ralm`, and print its processor time and the first line that it prints."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = spent()
    line = [str(one) for one in arguments]
    done = subprocess.run([sys.executable, "-m", "ralm", *line], check=True, capture_output=True, text=True)
    name = " ".join(one for one in line if "/" not in one and one != "--out")
    print(f"| {name} | {spent() - before:.1f} | {done.stdout.partition(chr(10))[0].rpartition('/')[2]} |", flush=True)


def write(path: Path, words: Sequence[str], draw: random.Random) -> None:
    length = draw.randint(*WORDS)
    begin = draw.randrange(len(words) - length)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(" ".join([*words[begin : begin + length], path.stem]), encoding="utf-8")


def main(text: Path, files: int, changed: int, folder: Path) -> None:
    words, draw = text.read_text(encoding="utf-8").split(), random.Random(0)
    paths = [folder / "corpus" / str(number % 100) / f"f{number}.txt" for number in range(files)]
    for path in paths:
        write(path, words, draw)
    size = sum(path.stat().st_size for path in paths) / 1e6
    print(f"{files:,} files, {size:,.0f} MB\n| command | processor seconds | |\n|---|---|---|")
    index = folder / "index"
    show("index", folder / "corpus", "--out", index)
    tenth = changed // 10
    for path in draw.sample(paths, changed - tenth)[tenth:]:
        write(path, words, draw)
    for path in draw.sample([one for one in paths if one.exists()], tenth):
        path.unlink()
    for number in range(tenth):
        write(folder / "corpus" / f"new{number}.txt", words, draw)
    for more in (["--dry-run"], [], []):
        show("sync", index, *more)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--files", type=int, default=13_000)
    parser.add_argument("--changed", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        main(given.text, given.files, given.changed, Path(made))

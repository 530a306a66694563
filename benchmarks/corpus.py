"""What reading, splitting, decontaminating and storing a corpus cost, each compared with a plain way of doing the same.

    python -m benchmarks.corpus [SOURCE] [EVALUATION_TEXT]

Prints one row per stage: passages per second of processor time, and the speed relative to the named baseline, which
runs in this process on the same passages. Without arguments the passages are synthetic.
"""

import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from time import process_time

import numpy as np
import pyarrow as pa

from ralm.corpus.decontamination import Decontamination
from ralm.corpus.files import read_text
from ralm.corpus.sources import read_documents
from ralm.corpus.splitting import make_passages, split_by_words
from ralm.corpus.store import ROWS_A_BATCH, PassageStore, write_passages
from ralm.records import Document, Passage

REPEATS = 3
NGRAM = 13
WORD = re.compile(r"\w+")


def made_up_documents(count: int = 2000, words: int = 1500) -> list[Document]:
    """Documents of words with frequencies like those of a language."""
    rng = np.random.default_rng(0)
    numbers = rng.zipf(1.3, size=(count, words)) % 50_000
    return [
        Document(id=str(row), title=f"title {row}", text=" ".join(f"w{number}" for number in numbers[row].tolist()))
        for row in range(count)
    ]


def plain_split(text: str, words: int) -> list[str]:
    """Split as DPR's passages were, which loses the white space inside."""
    parts = text.split()
    return [" ".join(parts[begin : begin + words]) for begin in range(0, len(parts), words)]


def plain_overlap(evaluation_runs: set[tuple[str, ...]], text: str) -> bool:
    """Look up every run of words of a passage."""
    words = WORD.findall(text.lower())
    return any(tuple(words[i : i + NGRAM]) in evaluation_runs for i in range(len(words) - NGRAM + 1))


def plain_get(batches: list[pa.RecordBatch], number: int) -> Passage:
    """Read a passage through Arrow's scalars."""
    batch, row = divmod(number, ROWS_A_BATCH)
    return Passage(number, *(column[row].as_py() for column in batches[batch].columns[:3]))


def seconds(work: Callable[[], object]) -> float:
    """The least processor time of a few runs."""
    times = []
    for _ in range(REPEATS):
        begin = process_time()
        work()
        times.append(process_time() - begin)
    return min(times)


def report(stage: str, count: int, ours: Callable[[], object], name: str, baseline: Callable[[], object]) -> None:
    taken, plain = seconds(ours), seconds(baseline)
    print(f"{stage:<28}{count / taken:>12,.0f} passages/s   {plain / taken:5.2f}x {name}")


def consume(items: Iterable[object]) -> int:
    return sum(1 for _ in items)


def compare_splitting(documents: list[Document], count: int) -> None:
    report(
        "split by 100 words",
        count,
        lambda: [consume(split_by_words(document.text, 100)) for document in documents],
        "str.split and join",
        lambda: [consume(plain_split(document.text, 100)) for document in documents],
    )


def compare_decontamination(passages: list[Passage], evaluated: str) -> None:
    decontamination = Decontamination.of(texts=[evaluated], ngram=NGRAM)
    words = WORD.findall(evaluated.lower())
    runs = {tuple(words[i : i + NGRAM]) for i in range(len(words) - NGRAM + 1)}
    found = [decontamination.overlap(passage.text) > 0 for passage in passages]
    assert found == [plain_overlap(runs, passage.text) for passage in passages]
    report(
        f"13-grams ({sum(found):,} removed)",
        len(passages),
        lambda: [decontamination.overlap(passage.text) for passage in passages],
        "a set of every 13-gram",
        lambda: [plain_overlap(runs, passage.text) for passage in passages],
    )


def compare_store(passages: list[Passage], folder: Path) -> None:
    path = folder / "passages.arrow"
    consume(write_passages(path, passages))
    opened, reader = PassageStore(path), pa.ipc.open_file(pa.memory_map(str(path)))
    batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
    numbers = np.random.default_rng(0).integers(0, len(passages), len(passages)).tolist()
    report(
        "one passage, at random",
        len(numbers),
        lambda: [opened[number] for number in numbers],
        "Arrow scalars",
        lambda: [plain_get(batches, number) for number in numbers],
    )


def main() -> None:
    documents = list(read_documents(sys.argv[1])) if len(sys.argv) > 1 else made_up_documents()
    passages = list(make_passages(documents))
    evaluated = read_text(Path(sys.argv[2])) if len(sys.argv) > 2 else "\n".join(d.text for d in documents[::50])
    compare_splitting(documents, len(passages))
    compare_decontamination(passages, evaluated)
    with tempfile.TemporaryDirectory() as folder:
        compare_store(passages, Path(folder))


if __name__ == "__main__":
    main()

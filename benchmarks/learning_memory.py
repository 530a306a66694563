"""What learning needs in memory: sampling examples of ever longer training text, and steps with more pairs at once.

    python -m benchmarks.learning_memory [MEGABYTES]

Samples 10,000 examples from a tenth of this much text (default 1,000 MB) and from all of it: the documents of MedQuAD,
again and again under other ids. Then trains a cross-encoder (MiniLM, pairs of 128 tokens) for two steps with 8 and with
32 pairs in memory at once. Prints the peak resident memory of each, in its own process. MedQuAD must be beside the
checkout.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from time import perf_counter

from benchmarks.dense import minilm
from benchmarks.held_out_texts import MEDQUAD
from benchmarks.peak_memory import peak_megabytes
from ralm.corpus.sources import read_documents
from ralm.corpus.splitting import make_passages
from ralm.lm.registry import load_local_model, load_tokenizer
from ralm.records import Document
from ralm.retrieval.build import build_index
from ralm.training.examples import sample_examples
from ralm.training.options import CandidateOptions, ExampleOptions, RerankerOptions, TrainingOptions
from ralm.training.reranker import train_reranker
from ralm.training.signal_writer import make_signals

MEGABYTES = 1_000
EXAMPLES = ExampleOptions(examples=10_000)
PAIRS = (8, 32)
TRAINING = TrainingOptions(steps=2, batch=4, held_out=0)


def write_text(path: Path, megabytes: float) -> None:
    """Documents of MedQuAD in JSON Lines, again and again, until there is so much text."""
    left = int(megabytes * 1e6)
    with path.open("w", encoding="utf-8") as stream:
        for number, document in enumerate(_again_and_again()):
            stream.write(json.dumps({"id": f"{number}", "text": document.text}) + "\n")
            left -= len(document.text.encode())
            if left <= 0:
                return


def _again_and_again() -> Iterator[Document]:
    for _ in count():
        yield from read_documents(str(MEDQUAD / "corpus.jsonl.gz"))


def sample(path: Path) -> None:
    """Sample examples as `ralm signals` does."""
    sample_examples(read_documents(str(path)), load_tokenizer("ralm-tiny"), EXAMPLES)


def make_few_signals(folder: Path) -> None:
    """An index of a text, and a few signals of it."""
    build_index(make_passages(read_documents(str(folder / "text.jsonl"))), folder / "index")
    model, few = load_local_model("ralm-tiny"), ExampleOptions(examples=32)
    make_signals(
        folder / "signals", str(folder / "text.jsonl"), folder / "index", model, few, CandidateOptions(candidates=8)
    )


def train(folder: Path, pairs: int) -> None:
    """Two steps."""
    reading = RerankerOptions(tokens=32, max_length=128, pairs=pairs)
    train_reranker(folder / "signals", folder / f"reranker-{pairs}", minilm(), TRAINING, reading)


def apart(kind: str, *arguments: object) -> tuple[float, float]:
    """The peak memory in MB of a part, in its own process, and its seconds."""
    command = [sys.executable, "-m", "benchmarks.learning_memory", f"--{kind}", *map(str, arguments)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    peak, seconds = json.loads(answer.splitlines()[-1])
    return peak, seconds


def main(megabytes: float) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"{'':<44}{'peak MB':>8}{'s':>8}")
        for size in (megabytes / 10, megabytes):
            write_text(folder / "text.jsonl", size)
            peak, seconds = apart("sample", folder / "text.jsonl")
            print(f"{f'{EXAMPLES.examples:,} examples of {size:,.0f} MB of text':<44}{peak:>8,.0f}{seconds:>8,.0f}")
        write_text(folder / "text.jsonl", 1)
        apart("signals", folder)
        for pairs in PAIRS:
            peak, seconds = apart("train", folder, pairs)
            print(f"{f'training, {pairs} pairs at once':<44}{peak:>8,.0f}{seconds:>8,.0f}")


def measure(kind: str, arguments: list[str]) -> None:
    """Do one part in this process, and print its peak memory and its time."""
    begin = perf_counter()
    match kind:
        case "--sample":
            sample(Path(arguments[0]))
        case "--signals":
            make_few_signals(Path(arguments[0]))
        case _:
            train(Path(arguments[0]), int(arguments[1]))
    print(json.dumps([peak_megabytes(), perf_counter() - begin]))


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("--"):
        measure(sys.argv[1], sys.argv[2:])
    else:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else MEGABYTES)

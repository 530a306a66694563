"""How often `ralm worth` gives the right verdict on planted corpora.

    python -m benchmarks.worth planted OUT [SEEDS]
    python -m benchmarks.worth real OUT MODEL [SEEDS [UNITS [STRIDES]]]

`planted` reads documents of this Python with ralm-tiny, for 20 seeds, over four corpora: gold (the documents with every
ninth word left out, so that no run of 13 words is shared), random (words of other documents), copies (the documents
themselves), and adversarial (a few of their words among others that a model expects to go on). `real` does the same
with another model, at most UNITS documents of so many strides each. Results are kept in OUT, JSON Lines, and a rerun
goes on.
"""

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ralm.corpus.splitting import make_passages
from ralm.demo.documentation import standard_library_documentation
from ralm.lm.registry import ModelOptions, load_language_model
from ralm.protocols import LanguageModel
from ralm.records import Document
from ralm.retrieval.build import build_index
from ralm.retrieval.index import open_index
from ralm.worth.held_out import WorthOptions, held_out_texts
from ralm.worth.verdict import judge_corpus

DOCUMENTS: Final = 96
UNITS: Final = 64
STRIDES: Final = 16
SEEDS: Final = 20


def dropped(words: list[str], _draws: np.random.Generator, _all: Sequence[str]) -> list[str]:
    """Every ninth word left out."""
    return [word for place, word in enumerate(words) if place % 9 != 4]


def shuffled(words: list[str], draws: np.random.Generator, every: Sequence[str]) -> list[str]:
    """As many words of other documents, at random."""
    return [every[place] for place in draws.integers(len(every), size=len(words))]


def copied(words: list[str], _draws: np.random.Generator, _all: Sequence[str]) -> list[str]:
    """The words themselves."""
    return words


def misled(words: list[str], draws: np.random.Generator, _all: Sequence[str]) -> list[str]:
    """Three words of each hundred, so that they are found, among others that a model expects to go on."""
    kept = {int(place) for begin in range(0, len(words), 100) for place in begin + draws.integers(100, size=3)}
    return [word if place in kept else "the.of.the." for place, word in enumerate(words)]


PLANTED: Final[dict[str, tuple[Callable[..., list[str]], str]]] = {
    "gold": (dropped, "helps"),
    "random": (shuffled, "no difference"),
    "copies": (copied, "near duplicates"),
    "adversarial": (misled, "harms"),
}


def planted(
    model: LanguageModel,
    kind: str,
    seed: int,
    most: int = UNITS,
    found: Sequence[Document] = (),
    strides: int = STRIDES,
) -> Any:
    """The verdict on a corpus of this kind; a third of the others than the adversarial one is random text."""
    draws = np.random.default_rng(seed)
    documents = [one for one in found or standard_library_documentation() if len(one.text.split()) > 120]
    order = draws.permutation(len(documents))
    some = [documents[place] for place in order[:DOCUMENTS]]
    every = [word for place in order[DOCUMENTS:] for word in documents[place].text.split()]
    change, _ = PLANTED[kind]
    corpus = [Document(f"p{n}", "", " ".join(change(one.text.split(), draws, every))) for n, one in enumerate(some)]
    others = 0 if kind == "adversarial" else len(some) // 2
    corpus += [Document(f"r{n}", "", " ".join(shuffled(every[:200], draws, every))) for n in range(others)]
    with tempfile.TemporaryDirectory() as folder:
        build_index(make_passages(corpus), Path(folder) / "index")
        index = open_index(Path(folder) / "index")
        options = WorthOptions(most=most, strides=strides, budget=0, seed=seed)
        text = [Document(f"t{n}", "", one.text) for n, one in enumerate(some)]
        return judge_corpus(index, model, held_out_texts(text, "text", model.tokenizer, options), options)


def measure_planted(
    out: Path, model: LanguageModel, seeds: int = SEEDS, units: int = UNITS, strides: int = STRIDES
) -> None:
    """All kinds and seeds that are not in OUT; prints how often each verdict was given."""
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(row["kind"], row["seed"]) for row in rows}
    for seed in range(seeds):
        for kind in PLANTED:
            if (kind, seed) in done:
                continue
            begin, clock = time.process_time(), time.perf_counter()
            one = planted(model, kind, seed, units, strides=strides)
            row = {
                "kind": kind,
                "seed": seed,
                "verdict": one.verdict,
                "gain": [one.gain.value, one.gain.low, one.gain.high],
                "all": [one.with_duplicates.value, one.with_duplicates.low, one.with_duplicates.high],
                "units": one.gain.units,
                "near_duplicates": one.near_duplicates,
                "processor": time.process_time() - begin,
                "wall": time.perf_counter() - clock,
            }
            rows.append(row)
            with out.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
            print(row, flush=True)
    for kind, (_, right) in PLANTED.items():
        own = [row for row in rows if row["kind"] == kind]
        verdicts = Counter(row["verdict"] for row in own)
        seconds = np.mean([row["processor"] for row in own])
        print(f"{kind} (right: {right}): {dict(verdicts)}, {seconds:.0f} s of processor time each")


def main(arguments: Sequence[str]) -> None:
    """Run a part."""
    match arguments:
        case ["planted", out, *seeds]:
            model = load_language_model("ralm-tiny", ModelOptions(dtype="float32"))
            measure_planted(Path(out), model, *map(int, seeds))
        case ["real", out, name, *counts]:
            measure_planted(Path(out), load_language_model(name), *map(int, counts))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])

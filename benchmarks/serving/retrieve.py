"""`POST /retrieve`, HTTP included, against bm25s and Lucene in this process, with NQ-open's questions.

    python -m benchmarks.serving.retrieve FOLDER [--passages N] [--k K]

The passages are those of the synthetic collection, with the words of real text by their rank, so that questions find
what they would in an encyclopedia. FOLDER keeps them and their index for the next run. Prints milliseconds of processor
time a query: of the whole process of the server, of bm25s (numba) with the tokenisation of the queries, and of Lucene,
if Pyserini and Java are there. Linux only.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from benchmarks import synthetic
from benchmarks.collection import real_passages
from benchmarks.engines import Search, bm25s_search, lucene_search
from benchmarks.measuring import DATA, print_table, serve, server
from ralm.retrieval.analysis import ENGLISH, Analyser

BATCHES = (1, 8, 64, 512)
_WORD = re.compile(r"[a-z]+")


def real_words() -> list[str]:
    """Return words of real text, one for each term, the term in most passages first."""
    analyse = Analyser(ENGLISH)
    counts: dict[str, int] = {}
    words: dict[str, str] = {}
    for text in real_passages():
        for word in set(_WORD.findall(text.lower())):
            for term in analyse(word):
                counts[term] = counts.get(term, 0) + 1
                words.setdefault(term, word)
    return [words[term] for term in sorted(counts, key=lambda term: (-counts[term], term))]


def write_passages(path: Path, passages: int) -> None:
    """Write the synthetic collection as JSON Lines."""
    words = real_words()
    with path.open("w", encoding="utf-8") as lines:
        for number, terms in enumerate(synthetic.collection(passages)):
            text = " ".join([words[term] if term < len(words) else f"w{term}" for term in terms])
            lines.write(json.dumps({"id": str(number), "title": f"Passage {number}", "text": text}) + "\n")


def milliseconds(
    clock: Callable[[], float], ask: Callable[[list[str]], object], queries: list[str], size: int
) -> float:
    """Return the time of a query that is asked in batches of this size; alone, a quarter of the queries is asked."""
    asked = queries[: len(queries) // 4] if size == 1 else queries
    batches = [asked[first : first + size] for first in range(0, len(asked) - size + 1, size)]
    begin = clock()
    for batch in batches:
        ask(batch)
    return (clock() - begin) / (len(batches) * size) * 1e3


def _asking(search: Search, k: int) -> Callable[[list[str]], object]:
    return lambda batch: search(batch, k)


def rows(index: Path, engines: Mapping[str, Search], k: int) -> Iterator[dict[str, object]]:
    """Yield the times of the server and of each engine, by batches."""
    with (DATA / "nq_open" / "NQ-open.dev.jsonl").open(encoding="utf-8") as lines:
        queries: list[str] = [json.loads(line)["question"] for line in lines]
    command = serve("--index", index, "--limits", "requests_waiting=1000")
    with server(command) as running, httpx.Client(base_url=running.url, timeout=120) as client:

        def ask(batch: list[str]) -> None:
            client.post("/retrieve", json={"queries": batch, "topk": k, "return_scores": True}).raise_for_status()

        milliseconds(running.processor_seconds, ask, queries[:256], 64)  # compiles
        for search in engines.values():
            search(queries, k)
        for size in BATCHES:
            ours = milliseconds(running.processor_seconds, ask, queries, size)
            row: dict[str, object] = {"batch": size, "ralm serve, ms": ours}
            for name, search in engines.items():
                time_of_engine = milliseconds(time.process_time, _asking(search, k), queries, size)
                row |= {f"{name}, ms": time_of_engine, f"{name}, ratio": time_of_engine / ours}
            yield row


def main() -> None:
    """Make what is missing in the folder, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--passages", type=int, default=500_000)
    parser.add_argument("--k", type=int, default=3)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    passages, index = args.folder / f"{args.passages}.jsonl", args.folder / f"index-{args.passages}"
    if not index.exists():
        write_passages(passages, args.passages)
        subprocess.run([sys.executable, "-m", "ralm", "index", passages, "--out", index], check=True)
    with passages.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    engines = {"bm25s": bm25s_search(texts)}
    with TemporaryDirectory() as folder:
        if search := lucene_search(texts, Path(folder) / "lucene"):
            engines["Lucene"] = search
        print_table(rows(index, engines, args.k))


if __name__ == "__main__":
    main()

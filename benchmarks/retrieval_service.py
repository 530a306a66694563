"""`POST /retrieve` of `ralm serve`, HTTP included, against bm25s and Lucene in this process, with NQ-open's questions.

    python -m benchmarks.retrieval_service FOLDER [--passages N] [--k K]

The passages are those of the synthetic collection, with the words of real text by their rank, so that questions find
what they would in an encyclopedia. FOLDER keeps them and their index for the next run. Prints milliseconds of processor
time for each query: of the whole process of the server, of bm25s (numba) with the tokenisation of the queries, and of
Lucene, if Pyserini and Java are there; then the latency with 32 clients by the clock, and the memory of the server.
Linux only.
"""

import argparse
import json
import logging
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bm25s
import httpx
import numpy as np
import Stemmer

from benchmarks import synthetic
from benchmarks.collection import DATA, real_passages
from benchmarks.engines import lucene
from ralm.retrieval.analysis import ENGLISH, Analyser

BATCHES = (1, 8, 64, 512)
CLIENTS = 32
OF_CLIENT = 30
"""Requests of each client."""
_TICKS = os.sysconf("SC_CLK_TCK")
_WORD = re.compile(r"[a-z]+")


def real_words() -> list[str]:
    """Words of real text, one for each term, the term in most passages first."""
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
    """The synthetic collection as JSON Lines."""
    words = real_words()
    with path.open("w", encoding="utf-8") as lines:
        for number, terms in enumerate(synthetic.collection(passages)):
            text = " ".join([words[term] if term < len(words) else f"w{term}" for term in terms])
            lines.write(json.dumps({"id": str(number), "title": f"Passage {number}", "text": text}) + "\n")


def questions() -> list[str]:
    """The questions of NQ-open's development set."""
    with (DATA / "nq_open" / "NQ-open.dev.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line)["question"] for line in lines]


@contextmanager
def server(index: Path, log: Path) -> Iterator[tuple[int, str]]:
    """The process of a server without a language model, and its address."""
    command = [
        sys.executable,
        "-m",
        "ralm",
        "serve",
        "--port",
        "0",
        "--index",
        str(index),
        "--limits",
        "requests_waiting=1000",
    ]
    with log.open("w") as lines:
        process = subprocess.Popen(command, stderr=lines)
    try:
        while not (found := re.search(r"serving .* at (\S+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        yield process.pid, found[1]
    finally:
        process.terminate()
        process.wait()


def processor_seconds(process: int) -> float:
    """The processor time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory(process: int) -> str:
    """What a process has in memory of its own, and of mapped files, in MB."""
    lines = dict(line.split(":") for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return ", ".join(f"{name} {int(lines[name].split()[0]) / 1e3:,.0f} MB" for name in ("RssAnon", "RssFile"))


def batches(asked: list[str], size: int) -> list[list[str]]:
    """The queries in batches of equal size; a quarter of them if each is sent alone."""
    some = asked[: len(asked) // 4] if size == 1 else asked
    return [some[first : first + size] for first in range(0, len(some) - size + 1, size)]


def of_server(client: httpx.Client, process: int, asked: list[list[str]], k: int) -> float:
    """Milliseconds of the server's processor time for a query."""
    begin = processor_seconds(process)
    for queries in asked:
        body = {"queries": queries, "topk": k, "return_scores": True}
        client.post("/retrieve", json=body).raise_for_status()
    return (processor_seconds(process) - begin) / sum(map(len, asked)) * 1e3


def of_engine(search: Callable[[Sequence[str], int], Any], asked: list[list[str]], k: int) -> float:
    """Milliseconds of this process's time for a query."""
    begin = time.process_time()
    for queries in asked:
        search(queries, k)
    return (time.process_time() - begin) / sum(map(len, asked)) * 1e3


def with_bm25s(texts: list[str]) -> Callable[[Sequence[str], int], Any]:
    """The search of bm25s, tokenisation of queries included."""
    stemmer = Stemmer.Stemmer("english")
    retriever = bm25s.BM25(method="lucene", k1=0.9, b=0.4, backend="numba")
    retriever.index(bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False), show_progress=False)

    def search(queries: Sequence[str], k: int) -> Any:
        tokens = bm25s.tokenize(queries, stopwords="en", stemmer=stemmer, show_progress=False, return_ids=False)
        return retriever.retrieve(tokens, corpus=texts, k=k, show_progress=False, n_threads=1)

    return search


def latencies(address: str, asked: list[str], k: int) -> list[float]:
    """Milliseconds of requests of one query each, from some clients at once, by the clock."""
    started = threading.Barrier(CLIENTS)

    def ask(place: int) -> list[float]:
        found = []
        with httpx.Client(base_url=address, timeout=60) as client:
            client.get("/health")
            started.wait()
            for query in asked[place::CLIENTS][:OF_CLIENT]:
                begin = time.perf_counter()
                client.post("/retrieve", json={"queries": [query], "topk": k}).raise_for_status()
                found.append((time.perf_counter() - begin) * 1e3)
        return found

    with ThreadPoolExecutor(CLIENTS) as pool:
        return [one for some in pool.map(ask, range(CLIENTS)) for one in some]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--passages", type=int, default=500_000)
    parser.add_argument("--k", type=int, default=3)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    passages, index = args.folder / f"{args.passages}.jsonl", args.folder / f"index-{args.passages}"
    if not index.exists():
        write_passages(passages, args.passages)
        subprocess.run([sys.executable, "-m", "ralm", "index", passages, "--out", index], check=True)
    logging.getLogger("bm25s").setLevel(logging.ERROR)
    with passages.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    engines = {"bm25s": with_bm25s(texts)}
    with TemporaryDirectory() as folder:
        if search := lucene(texts, Path(folder) / "lucene"):
            engines["Lucene"] = search
        compare(args, index, engines)


def compare(args: argparse.Namespace, index: Path, engines: Mapping[str, Callable[[Sequence[str], int], Any]]) -> None:
    """Print the time of each engine, by batches."""
    asked = questions()
    with (
        server(index, args.folder / "server.log") as (process, address),
        httpx.Client(base_url=address, timeout=120) as client,
    ):
        print(f"{args.passages:,} passages, {len(asked):,} questions, k {args.k}; the server after its start: ", end="")
        print(memory(process))
        warm = batches(asked, 64)[:4]
        of_server(client, process, warm, args.k)
        for search in engines.values():
            of_engine(search, batches(asked, 64), args.k)
        print("batch   ralm serve, ms" + "".join(f"{name + ', ms':>14}{'ratio':>8}" for name in engines))
        for size in BATCHES:
            own = batches(asked, size)
            ours = of_server(client, process, own, args.k)
            others = [of_engine(search, own, args.k) for search in engines.values()]
            print(f"{size:5}   {ours:14.3f}" + "".join(f"{one:14.3f}{one / ours:8.1f}" for one in others), flush=True)
        spent = latencies(address, asked, args.k)
        middle, last = statistics.median(spent), float(np.percentile(spent, 99))
        print(f"{CLIENTS} clients: p50 {middle:.1f} ms, p99 {last:.1f} ms; the server at the end: {memory(process)}")


if __name__ == "__main__":
    main()

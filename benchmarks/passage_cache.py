"""Time to the first token through `ralm serve` when the same passages come again, with and without the cache.

    python -m benchmarks.passage_cache [LM] [--tokens 200 550] [--documents 5] [--clients 8] [--topics 4] [--source DIR]

Each topic has its own passages of so many tokens. A first request for a topic reads them; then each of the clients asks
another question about each topic, which finds the same passages in the same order: as an ensemble, and all in one
prompt. The server is a process of its own with default options, once with `passage_cache=0`. "read again" are tokens of
a passage that the second request read, at most. `--source` is the `src` folder of another version, which is asked in
turn with this one. SmolLM2 is read from the folder LM.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import httpx
import numpy as np

from benchmarks.api.material import print_table
from benchmarks.serving import SERVING, program
from ralm.lm.local.tokenization import load_model_tokenizer

_READ = re.compile(r"^ralm_passage_cache_read (\S+)", re.MULTILINE)
_QUESTIONS = ("What is known of it?", "Who has seen it before?", "Where may it be found?", "Since when is it so?")
READERS = ("ensemble", "concatenation")


@dataclass(frozen=True)
class Server:
    """A running server and the name of its model."""

    model: str
    url: str

    def first_token(self, topic: str, question: str, reader: str, documents: int) -> float:
        """Return the seconds to the first token of an answer about a topic."""
        body = {
            "model": self.model,
            "prompt": f"{topic} {topic} {topic}. {question}",
            "max_tokens": 1,
            "temperature": 0,
            "ralm": {"reader": f"{reader}:documents={documents}"},
        }
        begin = time.perf_counter()
        httpx.post(f"{self.url}/completions", json=body, timeout=600).raise_for_status()
        return time.perf_counter() - begin

    def read(self) -> float:
        """Return the tokens of prompts that the server has read; NaN if it does not count them."""
        counted = _READ.search(httpx.get(f"{self.url.removesuffix('/v1')}/metrics", timeout=60).text)
        return float(counted[1]) if counted else float("nan")


@contextmanager
def served(lm: str, index: Path, cache: str, source: str | None) -> Iterator[Server]:
    """Serve a model with an index in a process of its own."""
    path = {"PYTHONPATH": source} if source else {}
    options = ["--lm-args", f"passage_cache={cache}"] if cache else []
    command = [sys.executable, "-m", "ralm", "serve", "--lm", lm, "--index", str(index), "--port", "0", *options]
    with program(["env", *(f"{name}={value}" for name, value in path.items()), *command], SERVING) as ready:
        yield Server(ready[1], ready[2])


def make_index(lm: str, folder: Path, topics: int, documents: int, tokens: int) -> Path:
    """Index `documents` passages of about this many tokens for each topic, which are found by its name."""
    draw, tokenizer = np.random.default_rng(tokens), load_model_tokenizer(lm, {}, {})
    words = ["river", "stone", "early", "carry", "green", "under", "water", "night", "house", "paper", "bring", "small"]
    corpus = folder / f"{tokens}.jsonl"
    with corpus.open("w", encoding="utf-8") as lines:
        for topic, number in product(range(topics), range(documents)):
            text = f"topic{topic}" + f" topic{topic}" * number
            while len(tokenizer.encode(text)) < tokens:
                text += " " + " ".join(draw.choice(words, 8))
            lines.write(f'{{"id": "{topic}-{number}", "text": "{text}"}}\n')
    index = folder / f"{tokens}.index"
    command = [sys.executable, "-m", "ralm", "index", str(corpus), "--out", str(index), "--words", "100000"]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "RALM_PROGRESS": "0"})
    return index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lm", nargs="?", default="smollm2")
    parser.add_argument("--tokens", type=int, nargs="+", default=[200, 550])
    parser.add_argument("--documents", type=int, default=5)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--topics", type=int, default=2)
    parser.add_argument("--readers", nargs="+", choices=READERS, default=READERS)
    parser.add_argument("--source")
    args = parser.parse_args()
    versions = [("this", None), *([("other", args.source)] if args.source else [])]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for tokens in args.tokens:
            index = make_index(args.lm, Path(folder), args.topics, args.documents, tokens)
            for reader, cache, (version, source) in product(args.readers, ("0", ""), versions):
                with served(args.lm, index, cache, source) as server:
                    setting = {
                        "tokens": tokens,
                        "reader": reader,
                        "cache": "off" if cache else "on",
                        "version": version,
                    }
                    rows.append({**setting, **measured(server, reader, args)})
                print(rows[-1], file=sys.stderr, flush=True)
    print_table(rows)


def measured(server: Server, reader: str, args: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of first and second requests, tokens read again, and the median of several clients."""
    topics = [f"topic{topic}" for topic in range(args.topics)]
    first = [server.first_token(topic, _QUESTIONS[0], reader, args.documents) for topic in topics]
    before = server.read()
    again = [server.first_token(topic, _QUESTIONS[1], reader, args.documents) for topic in topics]
    read = (server.read() - before) / args.topics
    asked = [*product(topics, [f"{question} {number}" for number, question in enumerate(_QUESTIONS * args.clients)])]
    with ThreadPoolExecutor(args.clients) as pool:
        seconds = [
            *pool.map(
                lambda about: server.first_token(about[0], about[1], reader, args.documents), asked[: 3 * args.clients]
            )
        ]
    return {
        "first, s": float(np.median(first)),
        "again, s": float(np.median(again)),
        "read again": read,
        f"{args.clients} clients, s": float(np.median(seconds)),
    }


if __name__ == "__main__":
    main()

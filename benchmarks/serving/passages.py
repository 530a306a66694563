"""Time to the first token when the same passages come again, with and without the cache of passages.

    python -m benchmarks.serving.passages [LM] [--tokens 200 550] [--clients 8] [--topics 2] [--source DIR]

Each topic has its own five passages of so many tokens. A first request for a topic reads them; then each of the clients
asks another question about each topic, which finds the same passages in the same order: as an ensemble, and all in one
prompt. The server has default options, but for the length of passages and once `passage_cache=0`. "read again" are
tokens of a passage that the second request read, at most. `--source` is the `src` folder of another version.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np

from benchmarks.measuring import Server, print_table, serve, server
from ralm.lm.registry import load_tokenizer

DOCUMENTS = 5
_READ = re.compile(r"^ralm_passage_cache_read (\S+)", re.MULTILINE)
_QUESTIONS = ("What is known of it?", "Who has seen it before?", "Where may it be found?", "Since when is it so?")
_WORDS = ["river", "stone", "early", "carry", "green", "under", "water", "night", "house", "paper", "bring", "small"]


def first_token(running: Server, topic: str, question: str, reader: str) -> float:
    """Return the seconds to the first token of an answer about a topic."""
    body = {
        "model": running.model,
        "prompt": f"{topic} {topic} {topic}. {question}",
        "max_tokens": 1,
        "temperature": 0,
        "ralm": {"reader": f"{reader}:documents={DOCUMENTS}"},
    }
    begin = time.perf_counter()
    httpx.post(f"{running.url}/completions", json=body, timeout=600).raise_for_status()
    return time.perf_counter() - begin


def tokens_read(running: Server) -> float:
    """Return the tokens of prompts that the server has read; NaN if it does not count them."""
    counted = _READ.search(httpx.get(f"{running.url.removesuffix('/v1')}/metrics", timeout=60).text)
    return float(counted[1]) if counted else float("nan")


def make_index(lm: str, folder: Path, topics: int, tokens: int) -> Path:
    """Index passages of about this many tokens for each topic, which are found by its name."""
    draw, tokenizer = np.random.default_rng(tokens), load_tokenizer(lm)
    corpus, index = folder / f"{tokens}.jsonl", folder / f"{tokens}.index"
    with corpus.open("w", encoding="utf-8") as lines:
        for topic, number in product(range(topics), range(DOCUMENTS)):
            text = f"topic{topic}" + f" topic{topic}" * number
            while len(tokenizer.encode(text)) < tokens:
                text += " " + " ".join(draw.choice(_WORDS, 8))
            lines.write(json.dumps({"id": f"{topic}-{number}", "text": text}) + "\n")
    command = [sys.executable, "-m", "ralm", "index", str(corpus), "--out", str(index), "--words", "100000"]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "RALM_PROGRESS": "0"})
    return index


def measure(running: Server, reader: str, args: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of first and second requests, tokens read again, and the median of several clients."""
    topics = [f"topic{topic}" for topic in range(args.topics)]
    first = [first_token(running, topic, _QUESTIONS[0], reader) for topic in topics]
    before = tokens_read(running)
    again = [first_token(running, topic, _QUESTIONS[1], reader) for topic in topics]
    read = (tokens_read(running) - before) / args.topics
    questions = [f"{question} {number}" for number, question in enumerate(_QUESTIONS * args.clients)]
    asked = [*product(topics, questions)][: 3 * args.clients]
    with ThreadPoolExecutor(args.clients) as pool:
        seconds = [*pool.map(lambda pair: first_token(running, pair[0], pair[1], reader), asked)]
    return {
        "first, s": float(np.median(first)),
        "again, s": float(np.median(again)),
        "read again": read,
        f"{args.clients} clients, s": float(np.median(seconds)),
    }


def rows(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield a row for each length of passages, reader, setting of the cache and version."""
    sources = {"this": None, "other": args.source} if args.source else {"this": None}
    with TemporaryDirectory() as folder:
        for tokens in args.tokens:
            index = make_index(args.lm, Path(folder), args.topics, tokens)
            for reader, cache, version in product(("ensemble", "concatenation"), ("off", "on"), sources):
                options = ["--document-tokens", tokens + 50, "--index", index]
                options += ["--lm-args", "passage_cache=0"] if cache == "off" else []
                with server(serve("--lm", args.lm, *options, source=sources[version])) as running:
                    setting = {"tokens": tokens, "reader": reader, "cache": cache, "version": version}
                    yield {**setting, **measure(running, reader, args)}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lm", nargs="?", default="smollm2")
    parser.add_argument("--tokens", type=int, nargs="+", default=[200, 550])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--topics", type=int, default=2)
    parser.add_argument("--source")
    print_table(rows(parser.parse_args()))


if __name__ == "__main__":
    main()

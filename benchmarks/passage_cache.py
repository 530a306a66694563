"""Time to the first token of answers with and without the cache of passages.

    python -m benchmarks.passage_cache [LM] [--questions 200] [--passages 50] [--k 5] [--reader ensemble]

Questions of NQ with k of the passages of other questions, drawn by Zipf's law: popular ones are read again and again.
Each question is asked with an empty cache, and with the one that the questions before have filled; processor time of
one thread, from the question to its first token. Figures of the second half of the questions. First tokens and their
log-probabilities are compared with those of prompts that are read whole. The data must be beside the checkout.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from pydantic import JsonValue

from benchmarks.answering import DATA
from ralm.answering.answerer import Answerer
from ralm.answering.options import AnswerOptions
from ralm.answering.prompt_reader import open_prompt
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.registry import ModelOptions, load_local_model
from ralm.lm.tokenizer import has_chat_template
from ralm.reading.concatenation import Concatenation
from ralm.reading.ensemble import Ensemble
from ralm.reading.parts import Parts
from ralm.reading.sources import FromRetriever
from ralm.records import Hits, Passage


@dataclass
class Popular:
    """A retriever that draws passages by Zipf's law."""

    passages: int
    config: dict[str, JsonValue] = field(default_factory=dict)

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        weights = 1 / np.arange(1, self.passages + 1)
        numbers_QK = np.stack(
            [
                np.random.default_rng(len(query)).choice(self.passages, k, replace=False, p=weights / weights.sum())
                for query in queries
            ]
        )
        return Hits(numbers_QK, np.ones(numbers_QK.shape, np.float32))


def read_json(name: str, count: int) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in islice(lines, count)]


def first_token(answerer: Answerer, question: str) -> tuple[float, int, float]:
    """Milliseconds until the first token, the token, and its log-probability; -1 and 0 if the answer is empty."""
    begin = time.process_time()
    piece = next(iter(answerer.stream(question)), None)
    seconds = time.process_time() - begin
    token, log_prob = (piece.tokens[0].token, piece.tokens[0].log_prob) if piece is not None else (-1, 0.0)
    return seconds * 1e3, token, log_prob


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lm", nargs="?", default="smollm2")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--passages", type=int, default=50)
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--reader", choices=("ensemble", "concatenation"), default="ensemble")
    args = parser.parse_args()
    torch.set_num_threads(1)
    loaded = load_local_model(args.lm, ModelOptions(passage_cache=4096))
    prefixes = loaded.prefixes
    without = LocalLanguageModel(loaded.name, loaded.model, loaded.tokenizer)
    passages = [
        Passage(number, str(number), one["title"], one["text"])
        for number, one in enumerate(read_json("passages.jsonl", args.passages))
    ]
    source = FromRetriever(Popular(len(passages)), passages)
    reader = Ensemble(documents=args.k) if args.reader == "ensemble" else Concatenation(documents=args.k)
    prompt = open_prompt("chat" if has_chat_template(loaded.tokenizer) else "replug")
    cold, warm = (
        Answerer(model, prompt, source, parts=Parts(reader=reader), options=AnswerOptions(new_tokens=1), measured=False)
        for model in (without, loaded)
    )
    rows = []
    for number, one in enumerate(read_json("questions.jsonl", args.passages + args.questions)[args.passages :], 1):
        plain, kept = first_token(cold, one["question"]), first_token(warm, one["question"])
        rows.append((plain[0], kept[0], plain[1] == kept[1], abs(plain[2] - kept[2])))
        if number % 20 == 0:
            print(f"{number}: cold {np.median([row[0] for row in rows]):.0f} ms", flush=True)
    half = rows[len(rows) // 2 :]
    p50, p50_kept = np.median([row[0] for row in half]), np.median([row[1] for row in half])
    assert prefixes is not None
    print(f"{args.lm}, {args.reader} of {args.k}, {args.questions} questions, {args.passages} passages")
    print(f"p50 cold {p50:.0f} ms, warm {p50_kept:.0f} ms: {p50 / p50_kept:.1f} times")
    same, difference = sum(row[2] for row in rows), max(row[3] for row in rows)
    print(f"same first token: {same} of {len(rows)}; largest difference of log-probabilities {difference:.1e}")
    print(f"{prefixes.found:,} tokens found, {prefixes.read:,} read, {prefixes.held / 1e6:,.0f} MB held")


if __name__ == "__main__":
    main()

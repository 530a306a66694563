"""What retrieval is worth to a model on the held-out documentation: perplexities of the same tokens, read in four ways.

`none`: the window of the last 1,024 tokens; `random` and `bm25`: a passage of at most 256 tokens in place of the oldest
ones; `oracle`: the best of BM25's first 16 for the targets. A light substitute for `ralm eval`, for the curve over
training.
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from ralm.demo.documentation import split_held_out, standard_library_documentation
from tools.ralm_tiny.bm25 import Bm25, passages_of

SHIPPED = Path(str(files("ralm.lm"))) / "ralm-tiny"
"""The tokenizer is the shipped one, so that checkpoints without one are measured on the same tokens."""

CONTEXT = 1024
PASSAGE_TOKENS = 256
QUERY_TOKENS = 32
ORACLE = 16


@dataclass(frozen=True, eq=False)
class Question:
    """A stride of held-out text: its targets, the tokens before them, and the passages found."""

    prefix: NDArray[np.int64]
    targets: NDArray[np.int64]
    random: NDArray[np.int64]
    found: Sequence[NDArray[np.int64]]


def main() -> None:
    """Print a line of perplexities for each model folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--strides", type=int, default=256)
    parser.add_argument("--stride", type=int, default=8)
    parser.add_argument("--oracle", action="store_true")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    questions = held_out_questions(tokenizer, args.strides, args.stride)
    for folder in args.folders:
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
        found = {name: round(value, 3) for name, value in perplexities(model, questions, args.oracle).items()}
        print(json.dumps({"folder": folder.name, "tokens": args.strides * args.stride, **found}), flush=True)


def held_out_questions(tokenizer: PreTrainedTokenizerFast, strides: int, stride: int, seed: int = 0) -> list[Question]:
    """Strides spread evenly over the held-out documents, with passages of all the others."""
    corpus, held_out = split_held_out(standard_library_documentation())
    texts = [f"{d.title}\n{p}" for d in corpus for p in passages_of(d.text)]
    index = Bm25.build(texts)

    def encode(text: str) -> NDArray[np.int64]:
        return np.array(tokenizer.encode(text), dtype=np.int64)

    rng = np.random.default_rng(seed)
    order = rng.permutation(len(held_out))
    tokens = encode("\n\n".join(f"{held_out[i].title}\n{held_out[i].text}" for i in order))
    questions = []
    for begin in np.linspace(CONTEXT, len(tokens) - stride, strides).astype(int):
        prefix, targets = tokens[max(0, begin + stride - CONTEXT) : begin], tokens[begin : begin + stride]
        hits = index.search(str(tokenizer.decode(prefix[-QUERY_TOKENS:])), ORACLE)
        found = [encode(texts[hit])[:PASSAGE_TOKENS] for hit in hits]
        questions.append(Question(prefix, targets, encode(texts[rng.integers(len(texts))])[:PASSAGE_TOKENS], found))
    return questions


def perplexities(model: PreTrainedModel, questions: Sequence[Question], oracle: bool) -> dict[str, float]:
    """Token perplexity by what is put in front of the text."""
    choices: dict[str, Callable[[Question], Sequence[NDArray[np.int64]]]] = {
        "none": lambda question: [question.prefix[:0]],
        "random": lambda question: [question.random],
        "bm25": lambda question: question.found[:1],
    }
    if oracle:
        choices["oracle"] = lambda question: question.found
    count = sum(len(question.targets) for question in questions)
    return {
        name: math.exp(sum(min(_nlls(model, question, choose(question))) for question in questions) / count)
        for name, choose in choices.items()
    }


@torch.inference_mode()
def _nlls(model: PreTrainedModel, question: Question, passages: Sequence[NDArray[np.int64]]) -> list[float]:
    """The targets' negative log-likelihood with each of the passages in front."""
    nlls = []
    for passage in passages:
        room = CONTEXT - len(question.targets) - len(passage)
        ids = torch.from_numpy(np.concatenate([passage, question.prefix[-room:], question.targets]))[None]
        logits: Tensor = model(ids, logits_to_keep=len(question.targets) + 1).logits[0, :-1].float()
        nlls.append(float(torch.nn.functional.cross_entropy(logits, ids[0, -len(question.targets) :], reduction="sum")))
    return nlls


if __name__ == "__main__":
    main()

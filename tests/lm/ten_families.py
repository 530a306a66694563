"""Tokens and log-probabilities of ten families, which must be the same with every version of transformers.

`python -m tests.lm.ten_families` prints them; ten_families.json was written with transformers 5.24.0.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.local.tokenization import ModelTokenizer
from ralm.lm.scoring import Scorer
from ralm.records import Request
from tests.every_family import tiny_family_model
from tests.tiny_models import byte_tokenizer

TEN = ("gpt2", "gpt_neo", "gptj", "gpt_neox", "opt", "bloom", "llama", "mistral", "qwen3", "gemma2")
RECORDED = Path(__file__).with_suffix(".json")


def figures(family: str) -> dict[str, Any]:
    """Greedy tokens of two texts of different lengths, read together, with their log-probabilities; and scores."""
    model = LocalLanguageModel(family, _model(family), ModelTokenizer(byte_tokenizer(with_bos=False)))
    draw = np.random.default_rng(0)
    texts = [draw.integers(32, 127, size=size) for size in (9, 20)]
    requests = [Request(document=text[:2], context=text[2:-3], targets=text[-3:]) for text in texts]
    scores = [found.tolist() for found in Scorer(model).log_probs(requests)]
    continuations, written, log_probs = model.continuations(), [], []
    for _ in range(12):
        found_BV = continuations.next_tokens(texts).log_probs_BC
        written.append(found_BV.argmax(-1).tolist())
        log_probs.append(found_BV.max(-1).tolist())
        texts = [np.append(text, token) for text, token in zip(texts, written[-1], strict=True)]
    return {"scores": scores, "tokens": written, "log_probs": log_probs}


def _model(family: str) -> Any:
    """Weights that do not depend on how a version of transformers names and initialises them."""
    model = tiny_family_model(family)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3, generator=torch.Generator().manual_seed(number))
    return model


if __name__ == "__main__":
    sys.stdout.write(json.dumps({family: figures(family) for family in TEN}) + "\n")

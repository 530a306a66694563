"""Generation from the state of a recurrent model against reading the whole text for every token.

    python -m benchmarks.recurrent [--documents 4] [--tokens 200]

Mamba with 20 million random weights in float32; texts of 64 to 128 random tokens. Prints processor seconds of this
process, which a shared machine disturbs less than those of a clock, and their ratio.
"""

import argparse
import sys
import time

import numpy as np
import torch
from transformers import MambaConfig, MambaForCausalLM

from ralm.lm.local.blocks import Blocks
from ralm.lm.local.decoder import LocalDecoder, UncachedDecoder
from ralm.lm.local.engine import TargetLogits
from ralm.lm.local.probe import choose_decoder
from ralm.records import IntArray

_MAX_LENGTH = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=200)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=16_384, hidden_size=384, num_hidden_layers=14, tie_word_embeddings=True)
    logits = TargetLogits(MambaForCausalLM(config).eval().requires_grad_(False), "mamba")
    draw = np.random.default_rng(0)
    texts = [draw.integers(0, 16_384, size=size) for size in np.linspace(128, 64, given.documents).astype(int)]
    chosen = choose_decoder(logits, _MAX_LENGTH, Blocks(0))
    state, state_tokens = seconds(chosen(logits, _MAX_LENGTH), texts, given.tokens)
    whole, whole_tokens = seconds(UncachedDecoder(logits, _MAX_LENGTH), texts, given.tokens)
    sys.stdout.write(
        f"{logits.model.num_parameters() / 1e6:.1f}M parameters, {given.documents} texts, {given.tokens} tokens: "
        f"{chosen.__name__} {state:.1f} s, reading whole {whole:.1f} s, ratio {whole / state:.1f}; "
        f"same tokens: {state_tokens == whole_tokens}\n"
    )


def seconds(decoder: LocalDecoder, texts: list[IntArray], count: int) -> tuple[float, list[int]]:
    """Processor seconds for so many greedy tokens of the average of the texts' distributions, and the tokens."""
    begin, tokens = time.process_time(), []
    for _ in range(count):
        average_V = np.exp(decoder.next_tokens(texts).log_probs_BC.astype(np.float64)).mean(0)
        tokens.append(int(average_V.argmax()))
        texts = [np.append(text, tokens[-1]) for text in texts]
    return time.process_time() - begin, tokens


if __name__ == "__main__":
    main()

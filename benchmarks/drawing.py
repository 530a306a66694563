"""Drawing the next tokens of many prompts where the logits are, against the functions in NumPy.

    python -m benchmarks.drawing [--prompts 32] [--documents 10] [--vocabulary 128000] [--threads 1] [--rounds 5]

Logits are random: those of a prompt share what its documents do not change. NumPy gets log-probabilities that were
copied from the device, of all prompts at once, and draws for each prompt; the copy counts. Both take turns. Prints
processor milliseconds a prompt (medians), their ratio, and whether all tokens are the same.
"""

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from ralm.lm.local.draw import draw_from_logits
from ralm.lm.local.engine import TargetLogits
from ralm.reading.sampling import Sampling, draw_token
from ralm.records import Drawn, NextTokens

CASES = {
    "greedy": Sampling(),
    "temperature": Sampling(temperature=0.8),
    "top-p": Sampling(temperature=0.8, top_p=0.95),
    "top-k": Sampling(temperature=0.8, top_k=40),
    "top-logprobs": Sampling(top_logprobs=5),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"prompts": 32, "documents": 10, "vocabulary": 128_000, "threads": 1, "rounds": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = TargetLogits(GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1)), "random")
    seeded = torch.Generator().manual_seed(0)
    shared = 3 * torch.randn(given.prompts, 1, given.vocabulary, generator=seeded)
    own = torch.randn(given.prompts, given.documents, given.vocabulary, generator=seeded)
    logits_BV = (shared + own).flatten(0, 1).to(device)
    log_weights_K = np.full(given.documents, -np.log(given.documents))
    for name, sampling in CASES.items():
        random = np.random.default_rng(0)
        firsts = range(0, len(logits_BV), given.documents)
        draws = [sampling.draw(range(first, first + given.documents), log_weights_K, random) for first in firsts]

        def by_numpy() -> list[Drawn]:
            log_probs_BV = logits_BV.float().log_softmax(-1)
            model.check_numbers(log_probs_BV)
            predictions = NextTokens(log_probs_BV.cpu().numpy())
            # consecutive rows are a view, not a copy
            return [draw_token(predictions.of(slice(d.rows[0], d.rows[-1] + 1)), d) for d in draws]  # noqa: B023

        def on_device() -> list[Drawn]:
            return draw_from_logits(model, logits_BV, draws)  # noqa: B023

        rounds = [[timed(draw) for draw in (by_numpy, on_device)] for _ in range(given.rounds + 1)][1:]
        ms = np.median([[seconds for seconds, _ in turn] for turn in rounds], axis=0) * 1000 / given.prompts
        same = [one.token for one in rounds[0][0][1]] == [one.token for one in rounds[0][1][1]]
        sys.stdout.write(
            f"{name:12} NumPy {ms[0]:6.2f}, {device} {ms[1]:6.2f}, ratio {ms[0] / ms[1]:4.1f}; same tokens: {same}\n"
        )


@torch.inference_mode()
def timed(draw: Callable[[], list[Drawn]]) -> tuple[float, list[Drawn]]:
    """Processor seconds, and the tokens."""
    begin = time.process_time()
    drawn = draw()
    return time.process_time() - begin, drawn


if __name__ == "__main__":
    main()

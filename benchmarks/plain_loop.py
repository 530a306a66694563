"""In-Context RALM's evaluation in the form of its authors' loop: the baseline of the scoring engine.

It reads one window of the last L tokens at a time, with its beginning overwritten by the document, computes all its
logits, and keeps the loss of the last tokens (Ram et al., 2023, section 5). Reranking reads every candidate like this
(section 6.1) and keeps the one under which the tokens before the targets are likeliest.
"""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from ralm.records import IntArray


@torch.inference_mode()
def read(model: PreTrainedModel, window: IntArray, document: IntArray, scored: int) -> torch.Tensor:
    """The log-probabilities (float32) of the last `scored` tokens of a window read with a document."""
    ids_1N = torch.from_numpy(window)[None].clone()
    ids_1N[0, : len(document)] = torch.from_numpy(document)
    logits_1NV = model(input_ids=ids_1N.to(model.device)).logits
    targets_T = ids_1N[0, 1:].to(model.device)
    nll_T = torch.nn.functional.cross_entropy(logits_1NV[0, :-1].float(), targets_T, reduction="none")
    return -nll_T[-scored:].cpu()


def read_best(
    model: PreTrainedModel, window: IntArray, candidates: Sequence[IntArray], targets: int, rank_tokens: int
) -> torch.Tensor:
    """The targets' log-probabilities under the candidate that makes the `rank_tokens` tokens before them likeliest."""
    scored = [read(model, window, document, targets + rank_tokens) for document in candidates]
    best = max(scored, key=lambda log_probs: float(log_probs[:rank_tokens].sum()))
    return best[rank_tokens:]

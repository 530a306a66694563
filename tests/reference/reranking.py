"""Choosing a passage by likelihood, as a plain loop (In-Context RALM, section 6.1 and Figure 7).

Zero-shot: the candidate under which the last s' tokens of the prefix are likeliest, read from [candidate; prefix].
Oracle: the one under which the targets are. Token 0 of the text is never ranked by. Where nothing can be ranked by, the
first candidate.
"""

from collections.abc import Sequence

import torch


def chosen(
    model: torch.nn.Module,
    tokens: Sequence[int],
    candidates: Sequence[Sequence[int]],
    begin: int,
    end: int,
    *,
    rank_tokens: int | None,
    max_length: int,
    must_fit: int,
) -> int:
    """The index of the best candidate for the stride `begin:end`; the first `must_fit` tokens have to fit behind it."""
    ranked = range(max(begin, 1), end) if rank_tokens is None else range(max(begin - rank_tokens, 1), begin)
    totals = []
    for document in candidates:
        dropped = max(0, len(document) + must_fit - max_length)
        read = [*document, *tokens[dropped:end]]
        with torch.no_grad():
            scores = model(input_ids=torch.tensor([read])).logits[0].float().log_softmax(-1)
        totals.append(sum(float(scores[len(document) + i - dropped - 1, tokens[i]]) for i in ranked))
    return totals.index(max(totals))

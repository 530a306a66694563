"""In-Context RALM as the paper writes it (Ram et al., 2023, Eq. 3 and 4) as a plain loop.

Stride j predicts x[sj], ..., x[sj + s - 1] from [document; x[:sj + i]], with the oldest tokens of x dropped until the
whole input, targets included, has at most L tokens. The first token of the text has nothing before it.

Special tokens that stand first count as part of the document, and stand there where there is no document too.

With blocks of W tokens, every stride of a block drops what the last stride of the block has to.
"""

from collections.abc import Sequence

import torch


def log_probs(
    model: torch.nn.Module,
    tokens: Sequence[int],
    documents: Sequence[Sequence[int]],
    *,
    stride: int,
    max_length: int,
    block: int | None = None,
    first: Sequence[int] = (),
) -> list[float]:
    """Natural log-probabilities of tokens 1, 2, ...; `documents[j]` is the document of stride j, which begins with the
    special tokens `first`; empty for none."""
    result = []
    for j, begin in enumerate(range(0, len(tokens), stride)):
        end = min(begin + stride, len(tokens))
        document = list(documents[j]) or list(first)
        must_fit = end if block is None else min((begin // block + 1) * block, len(tokens))
        dropped = max(0, len(document) + must_fit - max_length)
        read = document + list(tokens[dropped:end])
        with torch.no_grad():
            scores = model(input_ids=torch.tensor([read])).logits[0].float().log_softmax(-1)
        for position in range(max(begin, 1), end):
            at = len(document) + position - dropped
            result.append(float(scores[at - 1, tokens[position]]))
    return result

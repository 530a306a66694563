"""The official In-Context RALM evaluation as a plain loop: one window at a time, all its logits, nothing shared.

Written from what its code does (see docs/method.md). Windows begin at 0, s, 2s, ...; each ends L tokens later, cut at
the end of the text, where the loop stops; its targets are the tokens after the end of the window before. From the
second window on, the document's tokens overwrite the first tokens of the window.

The published loop fails on a text that is no longer than its window: it lines up n targets with n - 1 predictions. Here
such a text has n - 1 targets, as the first window of any other text has.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass
class Window:
    """What the loop makes of one window."""

    target_log_probs: list[float]
    chosen: int | None

    @property
    def nll(self) -> float:
        return -sum(self.target_log_probs)


def evaluate(
    model: torch.nn.Module,
    tokens: Sequence[int],
    documents: Sequence[Sequence[Sequence[int]]],
    *,
    stride: int,
    max_length: int,
    ranking: str = "first",
    rank_tokens: int = 16,
) -> list[Window]:
    """`documents[i]` are the candidates of window i as token ids, cut already; none for a window read without."""
    windows = []
    previous_end = 0
    for number, begin in enumerate(range(0, len(tokens), stride)):
        end = min(begin + max_length, len(tokens))
        targets = end - previous_end
        candidates = documents[number] if number > 0 and documents else []
        windows.append(_window(model, tokens[begin:end], targets, candidates, ranking, rank_tokens))
        previous_end = end
        if end == len(tokens):
            break
    return windows


def _window(
    model: torch.nn.Module,
    window: Sequence[int],
    targets: int,
    candidates: Sequence[Sequence[int]],
    ranking: str,
    rank_tokens: int,
) -> Window:
    if not candidates:
        return Window(_log_probs(model, window, window)[-targets:], None)
    if ranking == "first":
        candidates = candidates[:1]
    scored = [_log_probs(model, [*document, *window[len(document) :]], window) for document in candidates]
    if ranking == "oracle":
        ranks = [sum(log_probs[-targets:]) for log_probs in scored]
    else:
        ranks = [sum(log_probs[-targets - rank_tokens : -targets]) for log_probs in scored]
    chosen = ranks.index(max(ranks))
    return Window(scored[chosen][-targets:], chosen)


def _log_probs(model: torch.nn.Module, read: Sequence[int], window: Sequence[int]) -> list[float]:
    """The log-probability of every token of the window but its first, when `read` is what the model reads."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([list(read)])).logits[0]
    log_probs = logits.float().log_softmax(-1)
    return [float(log_probs[i - 1, window[i]]) for i in range(1, len(window))]

"""REPLUG's evaluation as a plain loop, written from what its published code does: its windows, its ensemble.

A text of tokens x, encoded with the special tokens that its tokenizer puts around it, is read in windows of `window` =
context_len + pred_len tokens. The first predicts as many from an end-of-text token on, without retrieval. Every other
predicts the next pred_len + 1 tokens, fewer at the end of the text; what is read ends one before the last of them, and
is `window` tokens long. Its query is what is read but for as many tokens at its end as are predicted: context_len - 1
of them; the token right before the first target is not asked with.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass
class Window:
    """What is read, what is predicted from it, and what is asked with, as token ids; no query for the first."""

    read: list[int]
    predicted: list[int]
    query: list[int]


def windows(tokens: Sequence[int], end_token: int, context_len: int, pred_len: int) -> list[Window]:
    window = context_len + pred_len
    first = list(tokens[:window])
    made = [Window([end_token, *first[:-1]], first, [])]
    done = len(first)
    while done < len(tokens):
        count = min(pred_len + 1, len(tokens) - done)
        end = done + count
        read = list(tokens[end - window - 1 : end - 1])
        made.append(Window(read, list(tokens[done:end]), read[: len(read) - count]))
        done = end
    return made


def log_probs(
    model: torch.nn.Module, made: Sequence[Window], documents: Callable[[int], Sequence[tuple[Sequence[int], float]]]
) -> list[float]:
    """The log-probability of every token; `documents(i)` are window i's as token ids with their similarities."""
    result = []
    for number, window in enumerate(made):
        found = documents(number) if window.query else []
        if not found:
            result += _scored(model, window.read, window.predicted)
            continue
        total = sum(math.exp(similarity) for _, similarity in found)
        shares = [
            [
                math.exp(similarity) / total * math.exp(value)
                for value in _scored(model, [*ids, *window.read], window.predicted)
            ]
            for ids, similarity in found
        ]
        result += [math.log(sum(of_token)) for of_token in zip(*shares, strict=True)]
    return result


def _scored(model: torch.nn.Module, read: Sequence[int], predicted: Sequence[int]) -> list[float]:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([list(read)])).logits[0].double()
    scores = logits[-len(predicted) :].log_softmax(-1)
    return [float(scores[place, token]) for place, token in enumerate(predicted)]

"""How likely a language model finds the end of a prefix behind a passage, read in the pass that scores the pair.

Zero-shot reranking chooses by this alone (In-Context RALM, section 6.1); here it counts beside a score that is trained.
What stands nearest to the end says most about what follows, so a token that is j places before the end counts
exp(-j / decay). Knows models and tokens; knows nothing of signals. Letters of shapes: P pairs, T tokens, J places
before the end, D width, V vocabulary.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final

import torch
from pydantic import Field
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM

LEAST: Final = 0.01
"""Tokens that count less than this share of the last one are not read."""
_TRIED: Final = ("A passage, which comes first.", "The end of a prefix")
_SAME: Final = 1e-3
_LOGITS: Final = 1 << 25
"""How many logits are in memory at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Likelihood:
    """How much the log-probabilities of the last tokens of a prefix count beside a score: the last one `weight`, one
    that is j places before it `weight` * exp(-j / `decay`)."""

    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    decay: Annotated[float, Field(gt=0, allow_inf_nan=False)]

    @property
    def places(self) -> int:
        """How many tokens count."""
        return math.floor(self.decay * -math.log(LEAST)) + 1

    def of(self, log_probs_PJ: torch.Tensor) -> torch.Tensor:
        """What is added to the scores (P) of pairs; the log-probabilities are given from the last token on."""
        places_J = torch.arange(log_probs_PJ.shape[1], device=log_probs_PJ.device)
        return self.weight * (log_probs_PJ * torch.exp(-places_J / self.decay)).sum(dim=1)


def end_log_probs(
    model: Any, features: Mapping[str, torch.Tensor], hidden_PTD: torch.Tensor, lengths_P: torch.Tensor, places: int
) -> torch.Tensor:
    """The log-probabilities (float32, P x J) of the last tokens of pairs, from the last one on: at most `places` of
    them, and no more than the longest end has; 0 where the end of a pair, of `lengths_P` tokens, has no more.

    `hidden_PTD` is what the last layer of `model` gives. It must be a model for which `reads_ends` is true. Logits are
    in memory for some pairs at a time, also while training: they are computed again for the gradient.
    """
    tokens_PT, there_PT = features["input_ids"], features["attention_mask"]
    words_VD = model.get_input_embeddings().weight
    most = min(places, tokens_PT.shape[1] - 1, max(1, int(lengths_P.max())))
    places_J = torch.arange(most, device=tokens_PT.device)
    last_P = there_PT.shape[1] - 1 - there_PT.flip(1).argmax(dim=1)
    at_PJ = (last_P[:, None] - places_J).clamp(min=1)
    before_PJD = hidden_PTD.gather(1, (at_PJ - 1)[..., None].expand(-1, -1, hidden_PTD.shape[-1]))
    targets_PJ = tokens_PT.gather(1, at_PJ)
    at_once = max(1, _LOGITS // (most * len(words_VD)))
    pieces = zip(torch.split(before_PJD, at_once), torch.split(targets_PJ, at_once), strict=True)
    log_probs_PJ = torch.cat([_read(words_VD, before, targets) for before, targets in pieces])
    return torch.where(places_J < lengths_P[:, None], log_probs_PJ, 0.0)


def _read(words_VD: torch.Tensor, before_PJD: torch.Tensor, targets_PJ: torch.Tensor) -> torch.Tensor:
    if not torch.is_grad_enabled():
        return _log_probs(words_VD, before_PJD, targets_PJ)
    read: torch.Tensor = checkpoint(_log_probs, words_VD, before_PJD, targets_PJ, use_reentrant=False)
    return read


def _log_probs(words_VD: torch.Tensor, before_PJD: torch.Tensor, targets_PJ: torch.Tensor) -> torch.Tensor:
    logits_PJV = (before_PJD @ words_VD.T).float()
    return logits_PJV.gather(-1, targets_PJ[..., None]).squeeze(-1) - logits_PJV.logsumexp(dim=-1)


@contextmanager
def last_layer_of(model: Any) -> Iterator[list[torch.Tensor]]:
    """Within, what the last layer of a model gives (P x T x D) is noted for each pass."""
    seen: list[torch.Tensor] = []
    hook = model.base_model.register_forward_hook(lambda _, __, output: seen.append(output[0]))
    try:
        yield seen
    finally:
        hook.remove()


def reads_ends(source: str, model: Any, tokenizer: Any) -> bool:
    """Whether `end_log_probs` gives what the language model `source` itself gives, as a trial of the model shows.

    It does not if a token has another vector on the way out than on the way in, if logits are scaled or capped, or if
    the tokenizer puts something behind the end.
    """
    passage, end = _TRIED
    features = tokenizer(passage, end, return_tensors="pt").to(model.device)
    tokens_PT, there_PT = features["input_ids"], features["attention_mask"]
    expected = tokenizer(end, add_special_tokens=False)["input_ids"]
    if tokens_PT[0, -len(expected) :].tolist() != expected:
        return False
    whole: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval().to(model.device)
    training = model.training
    with torch.inference_mode(), last_layer_of(model.eval()) as seen:
        model(input_ids=tokens_PT, attention_mask=there_PT)
        lengths_P = torch.tensor([len(expected)], device=model.device)
        own_PJ = end_log_probs(model, features, seen[0], lengths_P, len(expected))
        theirs_TV = whole(input_ids=tokens_PT, attention_mask=there_PT).logits[0].float().log_softmax(-1)
    model.train(training)
    theirs_T = theirs_TV[:-1].gather(1, tokens_PT[0, 1:, None]).squeeze(1)
    return bool(torch.allclose(own_PJ[0].flip(0), theirs_T[-len(expected) :], atol=_SAME))

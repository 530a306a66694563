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
from transformers import AutoModelForCausalLM

LEAST: Final = 0.01
"""Tokens that count less than this share of the last one are not read."""
_TRIED: Final = ("A passage, which comes first.", "The end of a prefix")
_SAME: Final = 1e-3


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
    """The log-probabilities (float32, P x J) of the last tokens of pairs, from the last one on, at most `places` of
    them; 0 where the end of a pair, of `lengths_P` tokens, has no more.

    `hidden_PTD` is what the last layer of `model` gives. It must be a model for which `reads_ends` is true.
    """
    tokens_PT, there_PT = features["input_ids"], features["attention_mask"]
    places_J = torch.arange(min(places, tokens_PT.shape[1] - 1), device=tokens_PT.device)
    last_P = there_PT.shape[1] - 1 - there_PT.flip(1).argmax(dim=1)
    at_PJ = (last_P[:, None] - places_J).clamp(min=1)
    before_PJD = hidden_PTD.gather(1, (at_PJ - 1)[..., None].expand(-1, -1, hidden_PTD.shape[-1]))
    log_probs_PJV = (before_PJD @ model.get_input_embeddings().weight.T).float().log_softmax(dim=-1)
    log_probs_PJ = log_probs_PJV.gather(-1, tokens_PT.gather(1, at_PJ)[..., None]).squeeze(-1)
    return torch.where(places_J < lengths_P[:, None], log_probs_PJ, 0.0)


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
    features = tokenizer(passage, end, return_tensors="pt")
    tokens_PT, there_PT = features["input_ids"], features["attention_mask"]
    expected = tokenizer(end, add_special_tokens=False)["input_ids"]
    if tokens_PT[0, -len(expected) :].tolist() != expected:
        return False
    whole: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    training = model.training
    with torch.inference_mode(), last_layer_of(model.eval()) as seen:
        model(input_ids=tokens_PT, attention_mask=there_PT)
        own_PJ = end_log_probs(model, features, seen[0], torch.tensor([len(expected)]), len(expected))
        theirs_TV = whole(input_ids=tokens_PT, attention_mask=there_PT).logits[0].float().log_softmax(-1)
    model.train(training)
    theirs_T = theirs_TV[:-1].gather(1, tokens_PT[0, 1:, None]).squeeze(1)
    return bool(torch.allclose(own_PJ[0].flip(0), theirs_T[-len(expected) :], atol=_SAME))

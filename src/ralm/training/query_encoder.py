"""A query encoder as a student of signals, with passage vectors that stay as they are.

Candidates and the language model's scores come from signals, and passage vectors from the index, so a step encodes only
queries. Letters of shapes: B examples, K candidates, D dimensions.
"""

from pathlib import Path
from typing import Final

import numpy as np
import torch

from ralm.records import NO_PASSAGE, FloatArray, IntArray
from ralm.retrieval.dense.encoder import SentenceEncoder
from ralm.retrieval.dense.search import PassageVectors
from ralm.training.harness import Student
from ralm.training.losses import divergence_loss
from ralm.training.options import LSROptions, QueryEncoderOptions
from ralm.training.signals import Signals

QUERIES_AT_ONCE: Final = 32
"""Queries in memory at once, with what their gradients need."""


class QueryEncoderStudent(Student):
    """A query encoder, the signals that it learns from, and the vectors of their candidates."""

    at_once = QUERIES_AT_ONCE

    def __init__(
        self, encoder: SentenceEncoder, signals: Signals, vectors: PassageVectors, options: QueryEncoderOptions
    ) -> None:
        self.module = encoder.query_model.float()
        self._encoder = encoder
        self._signals = signals
        self._vectors = vectors
        self._loss = options.loss
        self._texts = signals.texts(options.reads)
        self._lm_scores_EK = signals.mean_log_probs_EK.astype(np.float32)

    def losses(self, examples_B: IntArray, _draws: np.random.Generator | None) -> torch.Tensor:
        """KL(Q to P) of each example."""
        lm_scores_BK = self._lm_scores_EK[examples_B]
        return losses_of(self._scores(examples_B), lm_scores_BK, self._signals.passages_EK[examples_B], self._loss)

    def worth(self, examples_E: IntArray) -> dict[str, float]:
        """Mean log-probabilities per token of the continuations of some examples: without a passage, behind the first
        candidate of the signals, behind the one that is chosen now, and behind the best."""
        signals = self._signals
        parts = np.split(examples_E, range(QUERIES_AT_ONCE, len(examples_E), QUERIES_AT_ONCE))
        self.module.eval()
        with torch.no_grad():
            chosen_E = torch.cat([self._scores(part).argmax(dim=1).cpu() for part in parts]).numpy()
        log_probs_EK = signals.log_probs_EK[examples_E]
        totals = {
            "none": signals.baseline_E[examples_E],
            "first": log_probs_EK[:, 0],
            "chosen": np.take_along_axis(log_probs_EK, chosen_E[:, None], axis=1),
            "best": log_probs_EK.max(axis=1),
        }
        tokens = signals.tokens_E[examples_E].sum()
        return {name: float(total.sum() / tokens) for name, total in totals.items()}

    def save(self, folder: Path) -> None:
        """Write the folder of the encoder."""
        self._encoder.save_query_encoder(folder)

    def named(self, example: int) -> str:
        """Its number and its document."""
        return f"example {example} (document {self._signals.documents_E[example]!r})"

    def _scores(self, examples_B: IntArray) -> torch.Tensor:
        """The inner products (B x K) of queries and candidates; -inf where there is no candidate."""
        queries_BD = self._encoder.query_tensor([self._texts[example].as_py() for example in examples_B.tolist()])
        passages_BK = self._signals.passages_EK[examples_B]
        scores_BK = inner_products(queries_BD, torch.from_numpy(self._vectors.of(passages_BK)).to(queries_BD.device))
        return scores_BK.masked_fill(torch.from_numpy(passages_BK == NO_PASSAGE).to(scores_BK.device), -torch.inf)


def inner_products(queries_BD: torch.Tensor, vectors_BKD: torch.Tensor) -> torch.Tensor:
    """The scores (float32, B x K) of candidates, in float32 whatever precision the encoders have."""
    with torch.autocast(queries_BD.device.type, enabled=False):
        return torch.einsum("bd,bkd->bk", queries_BD.float(), vectors_BKD.float())


def losses_of(
    scores_BK: torch.Tensor, lm_scores_BK: FloatArray, passages_BK: IntArray, options: LSROptions
) -> torch.Tensor:
    """The loss (float32, B) of candidates with these scores, mean log-probabilities and numbers."""
    lm_scores = torch.from_numpy(lm_scores_BK).to(scores_BK.device)
    there_BK = torch.from_numpy(passages_BK != NO_PASSAGE).to(scores_BK.device)
    return divergence_loss(scores_BK, lm_scores, there_BK, gamma=options.gamma, beta=options.beta)

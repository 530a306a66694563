"""LM-supervised retrieval with fixed passages: trains the query encoder alone, to the vectors that an index has.

Candidates and the language model's scores come from signals, and passage vectors from the index, so a step encodes only
queries, and the index stays valid. Letters of shapes: B examples of a batch, K candidates, D dimensions.
"""

import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from pydantic import JsonValue

from ralm.errors import OtherEncoderError, UsageError
from ralm.records import NO_PASSAGE, FloatArray, IntArray
from ralm.retrieval.dense.encoder import SentenceEncoder
from ralm.retrieval.dense.rows import PassageVectors
from ralm.retrieval.dense.search import check_encoder
from ralm.retrieval.dense.trained import KIND, TRAINED_FOR
from ralm.retrieval.index import Index, open_index
from ralm.training.harness import Student, Trained, own_randomness, train, training_run, write_trained
from ralm.training.losses import divergence_loss
from ralm.training.options import TrainingOptions
from ralm.training.retriever_options import REPLUG, LSROptions, QueryEncoderOptions
from ralm.training.signals import Signals, open_signals

QUERIES_AT_ONCE: Final = 32
"""Queries in memory at once, with what their gradients need."""

_ADVICE: Final = "begin from the encoder that made the vectors, or from a query encoder that was trained for them."
_logger = logging.getLogger(__name__)


def train_query_encoder(
    signals: Signals | Path | str,
    index: Index | Path | str,
    out: Path | str,
    options: QueryEncoderOptions | None = None,
    training: TrainingOptions = REPLUG,
    *,
    force: bool = False,
) -> Trained:
    """Train the query encoder of an index to prefer the passages that helped the language model, and write its folder.

    The folder loads with sentence-transformers, and as `query_encoder` of the index, whose vectors do not change. A
    killed training resumes with the same call. Raises UsageError if the signals are of another index, or the index has
    no vectors or only approximations of them; OtherEncoderError if `init` does not belong to the vectors; and what
    `train` raises.
    """
    options = options or QueryEncoderOptions()
    signals = signals if isinstance(signals, Signals) else open_signals(signals)
    index = index if isinstance(index, Index) else open_index(index)
    signals.check_index(index)
    vectors = index.passage_vectors(options.vectors)
    training_E, held_out_E = (_with_choice(signals, some) for some in signals.split(training.held_out, training.seed))
    if not len(training_E):
        raise UsageError(
            f"no example of {signals.path} that is trained on has two candidates, so there is nothing to prefer; "
            "measure signals with more candidates."
        )
    with own_randomness(training.seed):
        encoder = _begin_with(index, vectors, options, training.device)
        config = _config(signals, index, encoder, options, training)
        with training_run(out, KIND, config, force=force) as work:
            student = QueryEncoderStudent(encoder, signals, vectors, options)
            trained = train(student, work, training_E, held_out_E, training)
            made_by = index.vector_sets.named(options.vectors, index.path).built_with.passage_fingerprint
            write_trained(out, KIND, student, trained, config, results={TRAINED_FOR: made_by}, force=force)
    return trained


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
        queries_BD = self._encoder.query_tensor([self._texts[example].as_py() for example in examples_B.tolist()])
        passages_BK = self._signals.passages_EK[examples_B]
        vectors_BKD = torch.from_numpy(self._vectors.of(passages_BK)).to(queries_BD.device)
        return losses_of(queries_BD, vectors_BKD, passages_BK, self._lm_scores_EK[examples_B], self._loss)

    def save(self, folder: Path) -> None:
        """Write the folder of the encoder."""
        self._encoder.save_query_encoder(folder)

    def named(self, example: int) -> str:
        """Its number and its document."""
        return f"example {example} (document {self._signals.documents_E[example]!r})"


def losses_of(
    queries_BD: torch.Tensor,
    vectors_BKD: torch.Tensor,
    passages_BK: IntArray,
    lm_scores_BK: FloatArray,
    options: LSROptions,
) -> torch.Tensor:
    """The loss (float32, B) of queries whose candidates have these vectors, numbers and mean log-probabilities.

    Inner products are computed in float32, whatever precision the encoders have.
    """
    device = queries_BD.device
    with torch.autocast(device.type, enabled=False):
        scores_BK = torch.einsum("bd,bkd->bk", queries_BD.float(), vectors_BKD.float())
        lm_scores = torch.from_numpy(lm_scores_BK).to(device)
        there_BK = torch.from_numpy(passages_BK != NO_PASSAGE).to(device)
        return divergence_loss(scores_BK, lm_scores, there_BK, gamma=options.gamma, beta=options.beta)


def _with_choice(signals: Signals, examples: IntArray) -> IntArray:
    """Those of some examples that have two candidates or more; others teach nothing."""
    has = np.count_nonzero(signals.passages_EK[examples] != NO_PASSAGE, axis=1) > 1
    if not has.all():
        _logger.info("%s examples have fewer than two candidates and are left out", f"{np.count_nonzero(~has):,}")
    return examples[has]


def _begin_with(index: Index, vectors: PassageVectors, options: QueryEncoderOptions, device: str) -> SentenceEncoder:
    """The encoder to train. Raises OtherEncoderError if its queries do not belong to the vectors."""
    named = index.encoder_options(options.vectors)
    encoder = SentenceEncoder(
        named if options.init is None else replace(named, query_encoder=options.init), device=device
    )
    if encoder.dimension != vectors.dimension:
        raise OtherEncoderError(
            f"the index at {index.path} has vectors of {vectors.dimension} dimensions and {options.init} gives "
            f"{encoder.dimension}; {_ADVICE}"
        )
    built_with = index.vector_sets.named(options.vectors, index.path).built_with
    check_encoder(index.path, encoder, built_with, advice=_ADVICE)
    return encoder


def _config(
    signals: Signals, index: Index, encoder: SentenceEncoder, options: QueryEncoderOptions, training: TrainingOptions
) -> dict[str, JsonValue]:
    """Everything that decides the weights of the trained encoder."""
    chosen = index.vector_sets.named(options.vectors, index.path)
    return {
        "signals": signals.fingerprint,
        "index": index.fingerprint,
        "vectors": chosen.fingerprint,
        "encoder": encoder.query_config,
        "options": asdict(options),
        "training": asdict(training),
    }

"""Encoders that are trained with LSR: the query encoder alone, on signals, or the encoders of queries and passages.

With signals a step encodes only queries: candidates and scores come from the signals, passage vectors from the index.
Letters of shapes: B examples, K candidates, D dimensions.
"""

import io
import logging
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from pydantic import JsonValue

from ralm.protocols import Retriever
from ralm.records import NO_PASSAGE, DoubleArray, FloatArray, IntArray
from ralm.retrieval.dense.encoder import SentenceEncoder
from ralm.retrieval.dense.search import Dense, PassageVectors, open_vectors
from ralm.retrieval.index import Index
from ralm.retrieval.vectors import RemoteEncoding
from ralm.storage.atomic import storage_errors, write_atomically
from ralm.terminal import no_progress
from ralm.training.candidates import OnlineExamples
from ralm.training.loop import TrainableModel, batch_of_step
from ralm.training.losses import divergence_loss
from ralm.training.options import LSROptions, QueryEncoderOptions, RetrieverTrainingOptions, TrainingOptions
from ralm.training.refresh import Versions
from ralm.training.signals import Signals

QUERIES_AT_ONCE: Final = 32
"""Queries in memory at once, with what their gradients need."""


class TrainableQueryEncoder(TrainableModel):
    """A query encoder, the signals that it learns from, and the vectors of their candidates."""

    at_once = QUERIES_AT_ONCE

    def __init__(
        self, encoder: SentenceEncoder, signals: Signals, vectors: PassageVectors, options: QueryEncoderOptions
    ) -> None:
        self.module = encoder.query_model.float()
        self.documents_E = signals.documents_E
        self._encoder = encoder
        self._signals = signals
        self._vectors = vectors
        self._loss = options.loss
        self._texts = signals.texts(options.reads)
        self._lm_scores_EK = self._loss.lm_scores(signals.log_probs_EK, signals.tokens_E[:, None]).astype(np.float32)

    def losses(self, examples_B: IntArray, _draws: np.random.Generator | None) -> torch.Tensor:
        """KL(Q to P) of each example."""
        lm_scores_BK = self._lm_scores_EK[examples_B]
        return losses_of(self._scores(examples_B), lm_scores_BK, self._signals.passages_EK[examples_B], self._loss)

    def scores(self, examples_E: IntArray) -> DoubleArray:
        """The scores (float64, E x K) of the candidates of examples; -inf where there is none."""
        parts = np.split(examples_E, range(QUERIES_AT_ONCE, len(examples_E), QUERIES_AT_ONCE))
        self.module.eval()
        with torch.no_grad():
            return torch.cat([self._scores(part) for part in parts]).double().cpu().numpy()

    def save(self, folder: Path) -> None:
        """Write the folder of the encoder."""
        self._encoder.save_query_encoder(folder)

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
    """The loss (float32, B) of candidates with these scores, scores of the language model and numbers."""
    lm_scores = torch.from_numpy(lm_scores_BK).to(scores_BK.device)
    there_BK = torch.from_numpy(passages_BK != NO_PASSAGE).to(scores_BK.device)
    return divergence_loss(scores_BK, lm_scores, there_BK, gamma=options.gamma, beta=options.beta)


_HELD_OUT: Final = "held-out.npz"
_DAMAGED: Final = (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile)
_PROBES: Final = 64
"""Queries whose hits are compared when new vectors replace old ones."""

_logger = logging.getLogger(__name__)


class _Scored(NamedTuple):
    """The candidates of examples (int64, padded with `NO_PASSAGE`), and what Q is the softmax of (float32)."""

    examples_B: IntArray
    passages_BK: IntArray
    lm_scores_BK: FloatArray


class TrainableEncoders(TrainableModel):
    """The encoders of queries and passages, the examples, and the vectors of the passages that are searched.

    `first`: the retriever over the vectors that the index has. Losses are computed for one example at a time, so what
    is in memory is what the gradients of one query and its candidates need.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        examples: OnlineExamples,
        index: Index,
        first: Dense,
        training_E: IntArray,
        options: RetrieverTrainingOptions,
        training: TrainingOptions,
        ahead: RemoteEncoding | None = None,
    ) -> None:
        self.module = _module(encoder)
        self.documents_E = examples.documents_E
        self.refreshes: list[JsonValue] = []
        """For each time that the passages were encoded again: the step, and the share of the hits that stayed."""
        self._version = 0
        """The version of the vectors that are searched: the number of steps after which they were encoded."""
        self._encoder = encoder
        self._examples = examples
        self._index = index
        self._retriever = first
        self._training_E = training_E
        self._options = options
        self._training = training
        self._ahead = ahead
        self._batch: _Scored
        self._held_out: _Scored

    def begin(self, work: Path, held_out_E: IntArray, step: int) -> None:
        """Score the candidates of the held-out examples, which stay the same, so that losses can be compared."""
        if len(held_out_E):
            self._held_out = self._load_or_score(work / _HELD_OUT, held_out_E)
        self._versions = Versions(work, self._index, self._options.vectors, self._training.device, self._ahead)
        self._versions.forget_after(step)

    def begin_step(self, step: int) -> None:
        """Encode the passages again if it is time, and search for the candidates of the batch."""
        every = self._options.refresh_every
        # at a checkpoint, so that a training that resumes has the weights of the version
        at_checkpoint = step % self._training.checkpoint_every == 0
        with no_progress():  # the bar of the training is there already
            if every is not None and at_checkpoint and step - self._version >= every:
                self._refresh(step)
            self._batch = self._score(np.unique(batch_of_step(self._training_E, step, self._training)))

    def losses(self, examples_B: IntArray, draws: np.random.Generator | None) -> torch.Tensor:
        """KL(Q to P) of each example; 0 if it has fewer than two candidates."""
        scored = self._held_out if draws is None else self._batch
        return torch.stack([self._loss(example, scored) for example in examples_B.tolist()])

    def save(self, folder: Path) -> None:
        """Write the folder of the encoders."""
        self._encoder.save(folder)

    def state(self) -> dict[str, JsonValue]:
        """The version that is searched, and the refreshes so far."""
        return {"version": self._version, "refreshes": [*self.refreshes]}

    def restore(self, state: dict[str, Any]) -> None:
        """Search the same version again, if it is still there."""
        self.refreshes = state["refreshes"]
        if state["version"] and self._versions.vectors(state["version"]).is_file():
            self._retriever, self._version = self._open(state["version"]), state["version"]

    def _score(self, examples_B: IntArray) -> _Scored:
        """Retrieve candidates of examples, and score them."""
        hits = self._examples.candidates(examples_B, self._retriever, self._options.candidates)
        scores_BK = self._examples.score(examples_B, hits, self._options.loss)
        return _Scored(examples_B, hits.numbers_QK, scores_BK.astype(np.float32))

    def _load_or_score(self, file: Path, examples_B: IntArray) -> _Scored:
        """The scores that an earlier call wrote to a file, or else new ones, written there."""
        try:
            with np.load(file, allow_pickle=False) as kept:
                return _Scored(**{name: kept[name] for name in _Scored._fields})
        except FileNotFoundError:
            pass
        except _DAMAGED as error:
            _logger.warning("%s is damaged (%s): its scores are computed again.", file, error)
        scored = self._score(examples_B)
        content = io.BytesIO()
        np.savez(content, **scored._asdict())
        with storage_errors(file):
            write_atomically(file, content.getvalue())
        return scored

    def _loss(self, example: int, scored: _Scored) -> torch.Tensor:
        place = int(np.flatnonzero(scored.examples_B == example)[0])
        passages_K, lm_scores_K = scored.passages_BK[place], scored.lm_scores_BK[place]
        there_K = passages_K != NO_PASSAGE
        query_1D = self._encoder.query_tensor(self._examples.queries(np.array([example])))
        if np.count_nonzero(there_K) < 2:
            return query_1D.float().sum() * 0
        passages = [self._index.passages[number] for number in passages_K[there_K].tolist()]
        scores_1K = inner_products(query_1D, self._encoder.passage_tensor(passages)[None])
        return losses_of(scores_1K, lm_scores_K[there_K][None], passages_K[there_K][None], self._options.loss)[0]

    def _refresh(self, step: int) -> None:
        """Encode the passages with the encoders as they are, and search these vectors from now on."""
        self._versions.make(step, self._encoder.save)
        new = self._open(step)
        queries = self._examples.queries(self._training_E[:_PROBES])
        shared = overlap(self._retriever, new, queries, self._options.candidates)
        self.refreshes.append({"step": step, "overlap": round(shared, 4)})
        _logger.info(
            "step %s: the passages were encoded again; %s of the hits are as before", f"{step:,}", f"{shared:.0%}"
        )
        self._retriever, self._version = new, step

    def _open(self, version: int) -> Dense:
        """The retriever over a version."""
        file = self._versions.vectors(version)
        return Dense(open_vectors(file, file, len(self._index.passages)), self._encoder)


def overlap(one: Retriever, other: Retriever, queries: Sequence[str], k: int) -> float:
    """The share of the first k passages of a retriever that another one has among its first k, over all queries."""
    first_QK, second_QK = (retriever.retrieve(queries, k).numbers_QK for retriever in (one, other))
    found_QK = first_QK != NO_PASSAGE
    again_QK = (first_QK[:, :, None] == second_QK[:, None, :]).any(axis=2) & found_QK
    return float(again_QK.sum() / max(1, found_QK.sum()))


def _module(encoder: SentenceEncoder) -> torch.nn.Module:
    """All weights that training changes, in float32."""
    if encoder.passage_model is encoder.query_model:
        return encoder.query_model.float()
    return torch.nn.ModuleDict({"query": encoder.query_model.float(), "passage": encoder.passage_model.float()})

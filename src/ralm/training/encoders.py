"""Encoders that are trained with LSR: the query encoder alone, on signals, or the encoders of queries and passages.

`Refresh` encodes the passages again during a training, and keeps the versions of the vectors on disk:

version-N/    the vectors of all passages as the encoders were after N steps; made atomically
encoding/     chunks of vectors, while a version is made; a training that was killed reuses them

Letters of shapes: B examples, K candidates, D dimensions.
"""

import logging
import shutil
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from transformers import TrainerCallback

from ralm.protocols import Retriever
from ralm.records import NO_PASSAGE, DoubleArray, FloatArray, IntArray
from ralm.retrieval.build import encode_passages
from ralm.retrieval.dense.encoder import SentenceEncoder
from ralm.retrieval.dense.options import VECTORS
from ralm.retrieval.dense.search import Dense, PassageVectors, open_vectors
from ralm.retrieval.index import Index
from ralm.storage.work import storage_errors, sync, sync_one
from ralm.terminal import no_progress
from ralm.training.examples import OnlineExamples
from ralm.training.losses import divergence_loss
from ralm.training.options import LSROptions, QueryEncoderOptions, RetrieverTrainingOptions, TrainingOptions
from ralm.training.signals import Signals
from ralm.training.trainer import EncoderTrainer, ExampleLoss

_logger = logging.getLogger(__name__)


class QueryEncoderLoss(ExampleLoss):
    """LSR (REPLUG, Eq. 6) of a query encoder on signals and the vectors of their candidates."""

    trainer = EncoderTrainer
    at_once = 32

    def __init__(
        self, encoder: SentenceEncoder, signals: Signals, vectors: PassageVectors, options: QueryEncoderOptions
    ) -> None:
        super().__init__()
        self.model = encoder.query_model.float()
        self.documents_E = signals.documents_E
        self._encoder = encoder
        self._signals = signals
        self._vectors = vectors
        self._options = options
        self._queries = signals.texts("query")
        self._lm_scores_EK = options.lm_scores(signals.log_probs_EK, signals.tokens_E[:, None]).astype(np.float32)

    def losses(self, examples_B: IntArray) -> torch.Tensor:
        """Return KL(Q to P) of each example."""
        lm_scores_BK = self._lm_scores_EK[examples_B]
        return losses_of(self._scores(examples_B), lm_scores_BK, self._signals.passages_EK[examples_B], self._options)

    def scores(self, examples_E: IntArray) -> DoubleArray:
        """Return the scores (float64, E x K) of the candidates of examples; -inf where there is none."""
        parts = np.split(examples_E, range(self.at_once, len(examples_E), self.at_once))
        self.model.eval()
        with torch.no_grad():
            return torch.cat([self._scores(part) for part in parts]).double().cpu().numpy()

    def save(self, folder: Path) -> None:
        """Write the folder of the encoder."""
        self._encoder.save_query_encoder(folder)

    def _scores(self, examples_B: IntArray) -> torch.Tensor:
        """Return the inner products (B x K) of queries and candidates; -inf where there is no candidate."""
        queries_BD = self._encoder.query_tensor([self._queries[example].as_py() for example in examples_B.tolist()])
        passages_BK = self._signals.passages_EK[examples_B]
        scores_BK = inner_products(queries_BD, torch.from_numpy(self._vectors.of(passages_BK)).to(queries_BD.device))
        return scores_BK.masked_fill(torch.from_numpy(passages_BK == NO_PASSAGE).to(scores_BK.device), -torch.inf)


def inner_products(queries_BD: torch.Tensor, vectors_BKD: torch.Tensor) -> torch.Tensor:
    """Return the scores (float32, B x K) of candidates, in float32 whatever precision the encoders have."""
    with torch.autocast(queries_BD.device.type, enabled=False):
        return torch.einsum("bd,bkd->bk", queries_BD.float(), vectors_BKD.float())


def losses_of(
    scores_BK: torch.Tensor, lm_scores_BK: FloatArray, passages_BK: IntArray, options: LSROptions
) -> torch.Tensor:
    """Return the loss (float32, B) of candidates with these scores, scores of the language model and numbers."""
    lm_scores = torch.from_numpy(lm_scores_BK).to(scores_BK.device)
    there_BK = torch.from_numpy(passages_BK != NO_PASSAGE).to(scores_BK.device)
    return divergence_loss(scores_BK, lm_scores, there_BK, gamma=options.gamma, beta=options.beta)


class Refresh(TrainerCallback):  # type: ignore[misc]
    """A callback that encodes the passages again at some checkpoints; `retriever` searches the last vectors."""

    def __init__(
        self, encoder: SentenceEncoder, index: Index, options: RetrieverTrainingOptions, training: TrainingOptions
    ) -> None:
        self.retriever: Retriever = index.dense(vectors=options.vectors, encoder=encoder)
        self._encoder = encoder
        self._index = index
        self._vectors = options.vectors
        checkpoints = -(-(options.refresh_every or 0) // training.evaluate_every)
        self._every = checkpoints * training.evaluate_every
        self._work: Path

    def begin(self, work: Path, step: int) -> None:
        """Keep versions in a folder, for a training that begins or resumes after this step; remove later ones."""
        self._work = work
        for number, folder in self._versions().items():
            if number > step:
                shutil.rmtree(folder)
        if version := self._searched_at(step):
            self.retriever = self._open(version)

    def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Encode the passages again if it is time, and search these vectors from now on."""
        step = state.global_step
        if self._every and step and step % self._every == 0:
            with no_progress():  # the bar of the training is there already
                self.make_version(step)
            self.retriever = self._open(step)
            _logger.info("step %s: the passages were encoded again", f"{step:,}")

    def make_version(self, step: int) -> None:
        """Encode all passages, unless that was done, and remove versions that no checkpoint searches."""
        version, chunks = self._folder(step), self._work / "encoding"
        partial = version.with_name(f"{version.name}.partial")
        if version.is_dir():
            return
        with storage_errors(version):
            shutil.rmtree(partial, ignore_errors=True)
            stored = self._index.vector_sets.get(self._vectors, self._index.path).options
            encode_passages(self._index.passages, partial, chunks, self._encoder, stored)
            sync(partial)
            partial.rename(version)
            sync_one(self._work)
        checkpoints = [int(folder.name.partition("-")[2]) for folder in self._work.glob("checkpoint-*")]
        oldest = self._searched_at(min(checkpoints, default=step))
        unneeded = [folder for number, folder in self._versions().items() if number < oldest]
        for folder in (chunks, *unneeded):
            shutil.rmtree(folder, ignore_errors=True)

    def _searched_at(self, step: int) -> int:
        """Return the version that is searched at the checkpoint of a step; 0 for the vectors of the index."""
        return (step - 1) // self._every * self._every if self._every and step else 0

    def _open(self, version: int) -> Dense:
        """Return the retriever over a version."""
        file = self._folder(version) / VECTORS
        return Dense(open_vectors(file, file, len(self._index.passages)), self._encoder)

    def _versions(self) -> dict[int, Path]:
        return {int(folder.name.partition("-")[2]): folder for folder in self._work.glob("version-????????")}

    def _folder(self, version: int) -> Path:
        return self._work / f"version-{version:08d}"


_Scored: TypeAlias = dict[int, tuple[IntArray, FloatArray]]
"""The candidates of examples, and what Q is the softmax of (float32), both K."""


class EncodersLoss(ExampleLoss):
    """LSR (REPLUG, Eq. 6) of both encoders; only the gradients of one query and its candidates are in memory."""

    trainer = EncoderTrainer

    def __init__(
        self,
        encoder: SentenceEncoder,
        examples: OnlineExamples,
        index: Index,
        refresh: Refresh,
        options: RetrieverTrainingOptions,
    ) -> None:
        super().__init__()
        self.model = _module(encoder)
        self.documents_E = examples.documents_E
        self.callbacks = [refresh]
        self.refresh = refresh
        self._encoder = encoder
        self._examples = examples
        self._index = index
        self._options = options
        self._held_out: _Scored = {}
        self._scored: _Scored = {}

    def begin(self, work: Path, held_out_E: IntArray, step: int) -> None:
        """Score the candidates of the held-out examples, which stay the same, so that losses can be compared."""
        if len(held_out_E):
            self._held_out = self._scored = self._score(held_out_E)
        self.refresh.begin(work, step)

    def begin_step(self, examples_B: IntArray) -> None:
        """Search for the candidates of the batch, and score them."""
        with no_progress():  # the bar of the training is there already
            self._scored = self._held_out | self._score(np.unique(examples_B))

    def losses(self, examples_B: IntArray) -> torch.Tensor:
        """Return KL(Q to P) of each example; 0 if it has fewer than two candidates."""
        return torch.stack([self._loss(example) for example in examples_B.tolist()])

    def save(self, folder: Path) -> None:
        """Write the folder of the encoders."""
        self._encoder.save(folder)

    def _score(self, examples_B: IntArray) -> _Scored:
        """Retrieve candidates of examples, and score them."""
        hits = self._examples.candidates(examples_B, self.refresh.retriever, self._options.candidates)
        scores_BK = self._examples.score(examples_B, hits, self._options).astype(np.float32)
        return dict(zip(examples_B.tolist(), zip(hits.numbers_QK, scores_BK, strict=True), strict=True))

    def _loss(self, example: int) -> torch.Tensor:
        passages_K, lm_scores_K = self._scored[example]
        there_K = passages_K != NO_PASSAGE
        query_1D = self._encoder.query_tensor(self._examples.queries(np.array([example])))
        if np.count_nonzero(there_K) < 2:
            return query_1D.float().sum() * 0
        passages = [self._index.passages[number] for number in passages_K[there_K].tolist()]
        scores_1K = inner_products(query_1D, self._encoder.passage_tensor(passages)[None])
        return losses_of(scores_1K, lm_scores_K[there_K][None], passages_K[there_K][None], self._options)[0]


def _module(encoder: SentenceEncoder) -> SentenceTransformer:
    """Return a model with all weights that training changes, in float32."""
    query, passage = encoder.query_model.float(), encoder.passage_model.float()
    if passage is query:
        return query
    return SentenceTransformer(modules=[Router.for_query_document([*query], [*passage])], device=str(query.device))

"""LM-supervised retrieval (REPLUG, section 4), without importing torch at once.

It trains a query encoder on signals, for an index that stays as it is, or the encoders of queries and passages
together, as in the paper.
"""

import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pydantic import JsonValue

from ralm.errors import FolderError, RalmWarning
from ralm.protocols import Encoder
from ralm.retrieval.dense.options import ENCODER_KIND, TRAINED_FOR, is_trained, load_encoder, trained_options
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.layout import VectorSet
from ralm.retrieval.update import add_vectors, check_can_add
from ralm.storage.outputs import check_output, recover
from ralm.training.gains import ReadCandidates, encoder_gains
from ralm.training.options import (
    REPLUG,
    LSROptions,
    QueryEncoderOptions,
    RetrieverTrainingOptions,
    Trained,
    TrainingOptions,
    training_extra,
)
from ralm.training.signals import Signals, index_of, open_signals, split_for_training, split_with_choice

if TYPE_CHECKING:
    from ralm.retrieval.dense.encoder import SentenceEncoder
    from ralm.training.examples import OnlineExamples

_MOST_TESTED: Final = 1000
"""The most held-out examples of signals that say what was gained."""
_ADVICE: Final = "begin from the encoder that made the vectors, or from a query encoder that was trained for them."


def train_query_encoder(
    signals: Signals | Path | str,
    out: Path | str,
    options: QueryEncoderOptions | None = None,
    training: TrainingOptions = REPLUG,
    *,
    index: Index | Path | str | None = None,
    force: bool = False,
) -> Trained:
    """Train the query encoder of an index on signals, to vectors of passages that stay as they are.

    The folder `out` loads with sentence-transformers and as `query_encoder` of the index. A killed training resumes
    when this is called again with the same arguments. Warns if the candidates of the signals are those of another
    retriever, such as BM25: then nothing teaches the encoder what it should not find.

    Args:
        signals: Signals, or their folder.
        out: Folder of the encoder.
        options: The vectors, the encoder to begin from, and the loss.
        training: How it is trained.
        index: Index that the signals were measured with; None is the folder that they name.
        force: Replace an encoder that is there.

    Raises:
        UsageError: If the index is another one, or too few examples have two candidates.
        FolderError: If `init` does not belong to the vectors. `train_retriever` raises others, of the extra, vectors,
            folders, losses and disks.
    """
    options = options or QueryEncoderOptions()
    signals = signals if isinstance(signals, Signals) else open_signals(signals)
    index = index_of(signals, index)
    _warn_of_other_candidates(signals)
    chosen = index.vector_sets.get(options.vectors, index.path)
    training_E, development_E, tested_E = split_with_choice(signals, training, _MOST_TESTED)
    with training_extra():
        from ralm.retrieval.dense.encoder import SentenceEncoder
        from ralm.retrieval.dense.search import check_encoder
        from ralm.training.encoders import QueryEncoderLoss
        from ralm.training.trainer import own_randomness, train
    check_output(Path(out), kind=ENCODER_KIND, force=force)
    vectors = index.passage_vectors(options.vectors)
    with own_randomness(training.seed):
        named = index.encoder_options(options.vectors)
        named = named if options.init is None else replace(named, query_encoder=options.init)
        encoder = SentenceEncoder(named, device=training.device)
        check_encoder(index.path, encoder, chosen, advice=_ADVICE)
        config = _config(index, chosen, encoder, training, options) | {"signals": signals.fingerprint}
        trainable = QueryEncoderLoss(encoder, signals, vectors, options)
        read_E = np.concatenate([development_E, tested_E])
        before_EK = trainable.scores(read_E) if len(tested_E) else None

        def results() -> dict[str, JsonValue]:
            if before_EK is None:
                return {TRAINED_FOR: chosen.passage_fingerprint, "held_out": None}
            read_EKT = signals.token_log_probs_EKT[read_E].astype(np.float64)
            scored = before_EK, trainable.scores(read_E)
            before, after = (ReadCandidates(read_EKT[:, 1:], scores_EK) for scores_EK in scored)
            tested = [signals.documents_E[example] for example in tested_E.tolist()]
            gains = encoder_gains(read_EKT[:, 0], before, after, signals.tokens_E[read_E], tested)
            return {TRAINED_FOR: chosen.passage_fingerprint, "held_out": gains}

        return train(
            trainable, out, ENCODER_KIND, config, training_E, development_E, training, results=results, force=force
        )


def _warn_of_other_candidates(signals: Signals) -> None:
    retriever = signals.config.get("retriever")
    name = retriever.get("retriever") if isinstance(retriever, dict) else None
    if name not in (None, "dense", "hybrid"):
        warnings.warn(
            f"the candidates of {signals.path} are those of the retriever {name}: an encoder that learns from them "
            "alone may find worse passages in the whole index; measure signals with the retriever `dense`.",
            RalmWarning,
            stacklevel=3,
        )


def train_retriever(
    examples: "OnlineExamples",
    index: Index | Path | str,
    out: Path | str,
    options: RetrieverTrainingOptions | None = None,
    training: TrainingOptions = REPLUG,
    *,
    force: bool = False,
) -> Trained:
    """Train the encoders of an index, write their folder, and encode the passages with them as a set of vectors.

    A language model scores the examples on the way. The set is not the default. The folder loads with
    sentence-transformers; of a pair of encoders, it is that of queries, and `passages` in it that of passages. A killed
    training resumes when this is called again with the same arguments, without `force` also if it was killed while it
    made the new vectors.

    Args:
        examples: Training examples.
        index: Index whose encoders are trained, or its folder.
        out: Folder of the encoders; its name is that of the new vectors.
        options: The vectors to begin from, the candidates, and the loss.
        training: How they are trained.
        force: Replace encoders and vectors that are there.

    Raises:
        MissingExtraError: If the extra `train` is not installed.
        UsageError: If the index has no vectors, or a training with other settings was begun there.
        FolderError: If other encoders made the vectors.
        FolderExistsError: If `out` exists without `force`, another training writes it, or the index has vectors of the
            new name.
        ModelError: If a loss is not finite; the last checkpoint stays.
        StorageError: If the disk is full.
    """
    options = options or RetrieverTrainingOptions()
    index = index if isinstance(index, Index) else open_index(index)
    chosen = index.vector_sets.get(options.vectors, index.path)
    name = Path(out).resolve().name
    check_can_add(index, name, force=force)
    training_E, development_E, tested_E = split_for_training(examples.documents_E, training)
    with training_extra():
        from ralm.retrieval.dense.encoder import SentenceEncoder
        from ralm.training.encoders import EncodersLoss, Refresh
        from ralm.training.trainer import own_randomness, read_trained, train
    if force or not is_trained(Path(out)):
        check_output(Path(out), kind=ENCODER_KIND, force=force)
    named = index.encoder_options(options.vectors)

    def tuned() -> Encoder:
        return load_encoder(trained_options(Path(out), named), device=training.device)

    with own_randomness(training.seed):
        encoder = SentenceEncoder(named, device=training.device)
        refresh = Refresh(encoder, index, options, training)
        encoded_by, loaded = chosen.passage_fingerprint, encoder.config["passage_fingerprint"]
        if encoded_by not in (None, loaded):
            raise FolderError(
                f"the passages of {index.path} were encoded by other weights ({encoded_by}) than those of the encoder "
                f"that it names now ({loaded}); encode them again (`ralm encode`)."
            )
        config = _config(index, chosen, encoder, training, options) | {"examples": examples.config}
        trained = None if force else read_trained(Path(out), ENCODER_KIND, config)
        if trained is not None:  # it was killed while it encoded the passages
            recover(Path(out).resolve())
        else:
            loss = EncodersLoss(encoder, examples, index, refresh, options)
            trained = train(loss, out, ENCODER_KIND, config, training_E, development_E, training, force=force)
    add_vectors(index.path, tuned(), chosen.options, name=name, default=False, force=force)
    gains = None
    if len(tested_E):
        read_E = np.concatenate([development_E, tested_E])
        searched = (
            index.dense(vectors=options.vectors, encoder=load_encoder(named, device=training.device)),
            open_index(index.path).dense(vectors=name, encoder=tuned()),
        )
        (alone_ET, before), (_, after) = (
            examples.read(read_E, retriever, options.candidates) for retriever in searched
        )
        tested = [examples.documents_E[example] for example in tested_E.tolist()]
        gains = encoder_gains(alone_ET, before, after, np.full(len(read_E), alone_ET.shape[1]), tested)
    return replace(trained, held_out=gains)


def _config(
    index: Index, chosen: VectorSet, encoder: "SentenceEncoder", training: TrainingOptions, options: LSROptions
) -> dict[str, Any]:
    """Return what decides the weights of both kinds of training."""
    return {
        "index": index.fingerprint,
        "vectors": chosen.fingerprint,
        "encoder": encoder.query_config,
        "training": asdict(training),
        "options": asdict(options),
    }

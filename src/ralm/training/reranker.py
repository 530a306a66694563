"""Training the predictive reranker: a cross-encoder that learns from signals which passage helps (Eq. 9).

Importing this module does not import torch. In-Context RALM (Ram et al., 2023), section 6.2.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.records import NO_PASSAGE, IntArray
from ralm.retrieval.index import Index, open_index
from ralm.training.options import RerankerOptions, TrainingOptions, training_extra
from ralm.training.signals import Signals, open_signals

KIND: Final = "reranker"
INDEX_PATH: Final = "index_path"
"""The key of a signals folder's configuration that says where the index was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedReranker:
    """The outcome of a training.

    `steps` were done, and the weights after `best_step` were kept. `losses`: a row for each evaluation, as in
    losses.csv. `held_out`: mean log-probabilities per token of the continuations of the held-out examples without a
    passage (`none`), and behind the retriever's first (`first`), the reranker's choice (`chosen`) and the best
    candidate (`best`); None if nothing was held out.
    """

    out: Path
    steps: int
    best_step: int
    losses: Sequence[dict[str, JsonValue]]
    held_out: dict[str, JsonValue] | None


def train_reranker(
    signals: Signals | Path | str,
    out: Path | str,
    init: str,
    options: TrainingOptions | None = None,
    reading: RerankerOptions | None = None,
    *,
    index: Index | Path | str | None = None,
    force: bool = False,
) -> TrainedReranker:
    """Train a cross-encoder on signals, from the encoder or cross-encoder `init` (a hub name or folder).

    Writes the folder `out`, which `load_cross_encoder` and sentence-transformers load, with the losses as a table and a
    plot. `index` is the one that the signals were measured with; None is the folder that they name. A killed training
    resumes when this is called again with the same arguments.

    Raises MissingExtraError if the extra `train` is not installed; UsageError if the index is another one, too few
    examples have two candidates, or a training with other settings was begun there; FolderExistsError if `out` exists
    and `force` is not set, or another training is writing it; ModelError if a loss is not finite (the last checkpoint
    stays) or `init` cannot be loaded; StorageError if the disk is full.
    """
    options, reading = options or TrainingOptions(), reading or RerankerOptions()
    signals = signals if isinstance(signals, Signals) else open_signals(signals)
    index = _index_of(signals, index)
    training_E, held_out_E = _split(signals, options)
    with training_extra():
        from ralm.reranking.cross_encoder import load_pair_model
        from ralm.training.cross_encoder import PairStudent
        from ralm.training.harness import check_out, evaluated, own_randomness, train, training_run, write_trained
    check_out(out, KIND, force=force)
    with own_randomness(options.seed):
        model = load_pair_model(init, reading.tokens, device=options.device, max_length=reading.max_length, new=True)
        config: dict[str, JsonValue] = {
            "signals": {"fingerprint": signals.fingerprint, "config": dict(signals.config)},
            "init": dict(model.config),
            "training": asdict(options),
            "reading": asdict(reading),
        }
        student = PairStudent(model, signals, index.passages, reading)
        with training_run(out, KIND, config, force=force) as work:
            trained = train(student, work, training_E, held_out_E, options)
            held_out = student.worth(evaluated(held_out_E, options)) if len(held_out_E) else None
            write_trained(out, KIND, student, trained, config, results={"held_out": held_out}, force=force)
    return TrainedReranker(
        out=Path(out),
        steps=trained.steps,
        best_step=trained.best_step,
        losses=[asdict(row) for row in trained.losses],
        held_out=held_out,
    )


def _index_of(signals: Signals, index: Index | Path | str | None) -> Index:
    """The index that the signals were measured with."""
    if index is None:
        said = signals.config.get(INDEX_PATH)
        if not isinstance(said, str) or not Path(said).exists():
            raise UsageError(
                f"the index that the signals in {signals.path} were measured with "
                f"{f'is not in {said} any more' if said else 'is not recorded'}: give it as `index`."
            )
        index = said
    opened = index if isinstance(index, Index) else open_index(index)
    signals.check_index(opened)
    return opened


def _split(signals: Signals, options: TrainingOptions) -> tuple[IntArray, IntArray]:
    """The examples to train with and to hold out: those with two candidates or more, since one leaves no choice."""
    several_E = (signals.passages_EK != NO_PASSAGE).sum(axis=1) > 1
    training_E, held_out_E = (part[several_E[part]] for part in signals.split(options.held_out, options.seed))
    if not len(training_E) or (options.held_out > 0 and not len(held_out_E)):
        raise UsageError(
            f"of the {len(signals):,} examples in {signals.path} only {int(np.sum(several_E)):,} have two candidates "
            "or more, too few to train with and to hold some out: measure more."
        )
    return training_E, held_out_E

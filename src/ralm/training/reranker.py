"""Training the predictive reranker: a cross-encoder that learns from signals which passage helps (In-Context RALM, Eq.
9).

Importing this module does not import torch. In-Context RALM (Ram et al., 2023), section 6.2.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from ralm.retrieval.index import Index
from ralm.storage.outputs import FolderKind, check_output
from ralm.training.options import RerankerOptions, TrainingOptions, training_extra
from ralm.training.signals import Signals, index_of, open_signals, split_with_choice

RERANKER_KIND: Final = FolderKind("reranker")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedReranker:
    """The outcome of a training.

    `steps` were done, and the weights after `best_step` were kept. `rank_weight` and `likelihood` (its weight and
    decay; None if it does not count) were fitted before. `losses`: a row for each evaluation, as in losses.csv.
    `held_out`: mean log-probabilities per token of the continuations of the held-out examples without a passage
    (`none`), and after the retriever's first (`first`), the reranker's choice (`chosen`) and the best candidate
    (`best`); None if nothing was held out.
    """

    out: Path
    steps: int
    best_step: int
    rank_weight: float
    likelihood: dict[str, JsonValue] | None
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
    """Train a cross-encoder on signals, from the language model, encoder or cross-encoder `init` (hub name or folder).

    A language model reads the passage before the prefix, and gets a head that scores its last token; the likelihood of
    the prefix's end counts too, as in zero-shot reranking.

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
    index = index_of(signals, index)
    training_E, held_out_E = split_with_choice(signals, options.held_out, options.seed)
    with training_extra():
        from ralm.reranking.cross_encoder import load_pair_model
        from ralm.training.cross_encoder import TrainableCrossEncoder
        from ralm.training.loop import evenly_spaced, own_randomness, train, training_run, write_trained
    check_output(Path(out), kind=RERANKER_KIND, force=force)
    with own_randomness(options.seed):
        model = load_pair_model(init, reading.tokens, device=options.device, max_length=reading.max_length, new=True)
        config: dict[str, JsonValue] = {
            "signals": {
                "fingerprint": signals.fingerprint,
                "configs": [dict(one.config) for one in signals.folders],
            },
            "init": dict(model.config),
            "training": asdict(options),
            "reading": {name: value for name, value in asdict(reading).items() if name != "pairs"},
        }
        trainable = TrainableCrossEncoder(model, signals, index.passages, reading, fitted_to=training_E)
        with training_run(out, RERANKER_KIND, config, force=force) as work:
            trained = train(trainable, work, training_E, held_out_E, options)
            held_out = (
                trainable.held_out_gains(evenly_spaced(held_out_E, options.evaluated)) if len(held_out_E) else None
            )
            results: dict[str, JsonValue] = {"held_out": None if held_out is None else {**held_out}}
            likelihood = None if model.likelihood is None else asdict(model.likelihood)
            write_trained(out, RERANKER_KIND, trainable, trained, config, results=results, force=force)
    return TrainedReranker(
        out=Path(out),
        steps=trained.steps,
        best_step=trained.best_step,
        rank_weight=model.rank_weight,
        likelihood=likelihood,
        losses=[asdict(row) for row in trained.losses],
        held_out=held_out,
    )

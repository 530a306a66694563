"""Training the predictive reranker: a cross-encoder that learns from signals which passage helps.

In-Context RALM, Ram et al., 2023, section 6.2 and Eq. 9. Importing this module does not import torch.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from ralm.retrieval.index import Index
from ralm.storage.outputs import FolderKind, check_output
from ralm.training.gains import reranker_gains
from ralm.training.options import RerankerOptions, Trained, TrainingOptions, training_extra
from ralm.training.signals import Signals, index_of, open_signals, split_with_choice

RERANKER_KIND: Final = FolderKind("reranker")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedReranker(Trained):
    """The outcome of a training of a reranker, with the `rank_weight` that was fitted before."""

    rank_weight: float


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
    """Train a cross-encoder on signals, and write it into a folder.

    The folder loads with `load_cross_encoder` and sentence-transformers. A killed training resumes when this is called
    again with the same arguments.

    Args:
        signals: Signals, or their folder.
        out: Folder of the cross-encoder.
        init: Hub name or folder of the language model, encoder or cross-encoder to begin from. A language model reads
            the passage before the prefix, and gets a head that scores its last token.
        options: How it is trained.
        reading: How it reads pairs.
        index: Index that the signals were measured with; None is the folder that they name.
        force: Replace a cross-encoder that is there.

    Raises:
        UsageError: If the index is another one, or too few examples have two candidates.
        ModelError: If `init` cannot be loaded. `train_retriever` raises others, of the extra, folders, losses and
            disks.
    """
    options, reading = options or TrainingOptions(), reading or RerankerOptions()
    signals = signals if isinstance(signals, Signals) else open_signals(signals)
    index = index_of(signals, index)
    training_E, development_E, tested_E = split_with_choice(signals, options)
    with training_extra():
        from ralm.reranking.cross_encoder import load_pair_model
        from ralm.training import losses, trainer
    check_output(Path(out), kind=RERANKER_KIND, force=force)
    with trainer.own_randomness(options.seed):
        model = load_pair_model(init, reading.tokens, device=options.device, max_length=reading.max_length, new=True)
        config: dict[str, JsonValue] = {
            "signals": {"fingerprint": signals.fingerprint, "config": dict(signals.config)},
            "init": dict(model.config),
            "training": asdict(options),
            "reading": asdict(reading),
        }
        if reading.rank_prior:
            model.rank_weight = losses.fitted_rank_weight(signals, training_E)
        trainable = losses.CrossEncoderLoss(model, signals, index.passages, reading)
        before_E = trainable.choices(tested_E)

        def results() -> dict[str, JsonValue]:
            return {"held_out": reranker_gains(signals, tested_E, before_E, trainable.choices(tested_E))}

        trained = trainer.train(
            trainable, out, RERANKER_KIND, config, training_E, development_E, options, results=results, force=force
        )
    return TrainedReranker(**asdict(trained), rank_weight=model.rank_weight)

"""`ralm train`: trains small models on what a language model makes of passages."""

from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options
from ralm.cli.idle import Use, refuse_idle
from ralm.options import Option
from ralm.training.options import RerankerOptions, TrainingOptions

_TRAINING, _READING = TrainingOptions(), RerankerOptions()


def reranker(
    context: typer.Context,
    signals: Annotated[
        Path, typer.Argument(metavar="SIGNALS", help="Folder that `ralm signals` made.", show_default=False)
    ],
    init: Annotated[str, Option("Encoder or cross-encoder to begin from: a hub name or folder.")],
    out: Annotated[Path, Option("Folder for the reranker.")],
    index: Annotated[
        Path | None, Option("Index that the signals were measured with.", default_said="the one that they name")
    ] = None,
    reading: RerankerOptions = _READING,
    training: TrainingOptions = _TRAINING,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Train a predictive reranker: a cross-encoder that learns which passage makes the language model's next words
    likeliest.

    Use it with `ralm eval --rerank predictive --reranker DIR`, or with sentence-transformers. Rerun the command after
    an interruption to resume at the last checkpoint.
    """
    refuse_idle(context, Use(training))

    from ralm.cli.output import print_json, print_reranker
    from ralm.training.reranker import train_reranker

    trained = train_reranker(signals, out, init, training, reading, index=index, force=force)
    if json:
        print_json(
            {
                "reranker": str(out),
                "steps": trained.steps,
                "best_step": trained.best_step,
                "losses": [*trained.losses],
                "held_out": trained.held_out,
            }
        )
    else:
        print_reranker(trained)

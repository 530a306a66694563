"""`ralm train`: trains small models on what a language model makes of passages."""

from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options
from ralm.cli.idle import Use, refuse_idle
from ralm.options import Option
from ralm.training.options import REPLUG, QueryEncoderOptions, RerankerOptions, TrainingOptions

_TRAINING, _READING, _TUNED = TrainingOptions(), RerankerOptions(), QueryEncoderOptions()


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


def retriever(
    context: typer.Context,
    signals: Annotated[
        Path, typer.Argument(metavar="SIGNALS", help="Folder that `ralm signals` made.", show_default=False)
    ],
    out: Annotated[Path, Option("Folder for the trained encoder.")],
    index: Annotated[
        Path | None, Option("Index that the signals were measured with.", default_said="the one that they name")
    ] = None,
    tuned: QueryEncoderOptions = _TUNED,
    training: TrainingOptions = REPLUG,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Train the query encoder of an index, so that it finds the passages that help the language model (REPLUG LSR).

    The passages keep their vectors: search the same index with `--query-encoder OUT`. Rerun the command after an
    interruption to resume.
    """
    refuse_idle(context, Use(training))

    from ralm.cli.output import print_json, print_query_encoder
    from ralm.training.retriever import train_query_encoder

    trained = train_query_encoder(signals, out, tuned, training, index=index, force=force)
    if json:
        print_json(
            {
                "query_encoder": str(out),
                "steps": trained.steps,
                "best_step": trained.best_step,
                "losses": [*trained.losses],
                "held_out": None if trained.held_out is None else {**trained.held_out},
            }
        )
    else:
        print_query_encoder(trained)

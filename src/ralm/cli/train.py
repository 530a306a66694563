"""`ralm train`: trains small models on what a language model makes of passages."""

from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options
from ralm.lm.local.options import ModelOptions
from ralm.options import Option
from ralm.training.options import (
    REPLUG,
    QueryEncoderOptions,
    RerankerOptions,
    TrainingOptions,
    WeightingOptions,
)

_TRAINING, _READING, _TUNED = TrainingOptions(), RerankerOptions(), QueryEncoderOptions()
_WEIGHTING, _MODEL = WeightingOptions(), ModelOptions()


def reranker(
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
) -> None:
    """Train the query encoder of an index, so that it finds the passages that help the language model (REPLUG LSR).

    The passages keep their vectors: search the same index with `--query-encoder OUT`. Rerun the command after an
    interruption to resume.
    """
    from ralm.cli.output import print_line
    from ralm.training.retriever import train_query_encoder

    trained = train_query_encoder(signals, out, tuned, training, index=index, force=force)
    before, after = trained.held_out_loss(0), trained.held_out_loss(trained.best_step)
    if before is not None and after is not None:
        print_line(f"loss of the held-out examples: {before:.4f} before, {after:.4f} at step {trained.best_step:,}")
    print_line(f"{out}: search the same index with --retriever dense --query-encoder {out}")


def bm25(
    signals: Annotated[
        Path, typer.Argument(metavar="SIGNALS", help="Folder that `ralm signals` made.", show_default=False)
    ],
    lm: options.Model,
    out: Annotated[Path, Option("Folder for the weights.")],
    index: Annotated[
        Path | None, Option("Index that the signals were measured with.", default_said="the one that they name")
    ] = None,
    learning: WeightingOptions = _WEIGHTING,
    model: ModelOptions = _MODEL,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Learn how much more the last words of a query count, so that BM25's first passage helps the language model most.

    Searching with the weights (`--weighting OUT`) stays exact. If they gain nothing on held-out examples, the result is
    plain BM25. Rerun the command after an interruption to resume.
    """
    from ralm.cli.output import print_json, print_weighting
    from ralm.lm.named import load_language_model
    from ralm.training.bm25 import train_bm25

    learned = train_bm25(signals, load_language_model(lm, model), out, learning, index=index, force=force)
    if json:
        print_json(learned.as_json())
    else:
        print_weighting(out, learned)

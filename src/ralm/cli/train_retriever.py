"""`ralm train retriever`: tunes a query encoder to a language model."""

from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options
from ralm.options import Option
from ralm.training.options import TrainingOptions, training_extra
from ralm.training.retriever_options import REPLUG, QueryEncoderOptions

_TUNED = QueryEncoderOptions()


def retriever(
    signals: Annotated[
        Path, typer.Argument(metavar="SIGNALS", help="Folder that `ralm signals` made.", show_default=False)
    ],
    index: options.Index,
    out: Annotated[Path, Option("Folder for the trained encoder.")],
    tuned: QueryEncoderOptions = _TUNED,
    training: TrainingOptions = REPLUG,
    force: options.Force = False,
) -> None:
    """Train the query encoder of an index, so that it finds the passages that help the language model (REPLUG LSR).

    The passages keep their vectors: search the same index with `--query-encoder OUT`. Rerun the command after an
    interruption to resume.
    """
    from ralm.cli.output import print_line

    with training_extra():
        from ralm.training.query_encoder import train_query_encoder

    trained = train_query_encoder(signals, index, out, tuned, training, force=force)
    before, after = trained.held_out_loss(0), trained.held_out_loss(trained.best_step)
    if before is not None and after is not None:
        print_line(f"loss of the held-out examples: {before:.4f} before, {after:.4f} at step {trained.best_step:,}")
    print_line(f"{out}: search {index} with it, as --retriever dense --query-encoder {out}")

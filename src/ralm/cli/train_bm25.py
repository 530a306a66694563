"""`ralm train bm25`: learns weights of query terms for BM25."""

from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options
from ralm.lm.local.options import ModelOptions
from ralm.options import Option
from ralm.training.bm25_options import WeightingOptions

_LEARNING, _MODEL = WeightingOptions(), ModelOptions()


def bm25(
    signals: Annotated[
        Path, typer.Argument(metavar="SIGNALS", help="Folder that `ralm signals` made.", show_default=False)
    ],
    index: options.Index,
    lm: options.Model,
    out: Annotated[Path, Option("Folder for the weights.")],
    learning: WeightingOptions = _LEARNING,
    model: ModelOptions = _MODEL,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Learn how much more the last words of a query count, so that BM25's first passage helps the language model most.

    Searching with the weights (`--weighting OUT`) is as exact as before. If they gain nothing on held-out examples, the
    result is plain BM25. Rerun the command to resume after it was stopped.
    """
    from ralm.cli.output import print_json, print_line
    from ralm.lm.named import load_language_model
    from ralm.training.bm25 import train_bm25

    learned = train_bm25(signals, index, load_language_model(lm, model), out, learning, force=force)
    if json:
        print_json(learned.as_json())
        return
    print_line(f"gain over no passage, nats per token, on {learned.examples:,} training examples:")
    for one in learned.tried:
        print_line(f"  weights {', '.join(map(str, one.weights)):<8} {one.gain:+.4f}")
    print_line(
        f"on {learned.held_out:,} held-out examples, BM25 gains {learned.plain:+.4f}; weights "
        f"{', '.join(map(str, learned.best))} gain {learned.gain:+.4f} more "
        f"(95%: {learned.interval[0]:+.4f} to {learned.interval[1]:+.4f})"
    )
    if learned.weighting.is_plain:
        print_line(f"{out}: all terms weigh the same, as in plain BM25, since no other weights are better")
    else:
        print_line(f"{out}: search {index} with it, as --weighting {out}")

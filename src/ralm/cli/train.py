"""`ralm train`: trains small models on what a frozen language model prefers."""

import typer

from ralm.cli.flags import command
from ralm.cli.train_bm25 import bm25
from ralm.cli.train_retriever import retriever

train = typer.Typer(
    no_args_is_help=True, help="Train a retriever on what a frozen language model prefers, without labels."
)
train.command("retriever")(command(retriever))
train.command("bm25")(command(bm25))

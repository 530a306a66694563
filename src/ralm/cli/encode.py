"""`ralm encode`: adds vectors to an existing index."""

from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options
from ralm.cli.idle import Use, refuse_idle
from ralm.cli.models import encoding_on
from ralm.options import Option
from ralm.retrieval.dense.options import EncoderOptions, VectorOptions

_STORED = VectorOptions()


def encode(
    context: typer.Context,
    index: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `ralm index` made.", show_default=False)],
    encoding: EncoderOptions,
    vectors: Annotated[str, Option("Name of the vectors; an index can have several sets.")] = "main",
    default: Annotated[bool, Option("Search these vectors if `vectors` is not given.")] = True,
    stored: VectorOptions = _STORED,
    device: Annotated[str, Option("Where to encode: cpu, cuda, cuda:N, or auto (a GPU if there is one).")] = "auto",
    ray: options.Ray = None,
    force: options.Force = False,
) -> None:
    """Encode the passages of an index and add the vectors to it; its other vectors stay.

    The index changes atomically at the end; programs that have it open keep the old state. Rerun the command after an
    interruption to resume: finished vectors are kept in a folder beside the index.
    """
    from ralm.cli.output import print_encoded
    from ralm.retrieval.dense.options import load_encoder
    from ralm.retrieval.encode import add_vectors

    refuse_idle(context, Use(stored))
    encoder = load_encoder(encoding, device="auto" if ray else device)
    ahead = encoding_on(ray, device)
    manifest = add_vectors(index, encoder, stored, name=vectors, default=default, force=force, ahead=ahead)
    print_encoded(index, manifest, vectors)

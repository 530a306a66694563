"""`ralm encode`: vectors for the passages of an index that is already there."""

from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options
from ralm.cli.idle import Use, refuse_idle
from ralm.retrieval.dense.options import EncoderOptions, Pooling, QueryEnd, VectorOptions

_VECTORS = VectorOptions()


def encode(
    context: typer.Context,
    index: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `ralm index` made.", show_default=False)],
    encoder: Annotated[
        str, typer.Option(help="Encoder of passages, a hub name or folder (and of queries).", show_default=False)
    ],
    vectors: Annotated[str, typer.Option(help="Name of the vectors; several sets live side by side.")] = "main",
    default: Annotated[bool, typer.Option(help="Search these vectors where --vectors names none.")] = True,
    query_encoder: Annotated[str | None, typer.Option(help="Another encoder for queries, as DPR has it.")] = None,
    pooling: Annotated[
        Pooling, typer.Option(help="Over the tokens of a bare model; auto: as its folder says, else mean.")
    ] = "auto",
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Cosines, not the encoder's own inner products.")
    ] = False,
    titles: Annotated[bool, typer.Option(help="Encode the title with the text.")] = True,
    query_length: Annotated[
        int | None, typer.Option(help="Read so many tokens of a query.", show_default="the encoder's")
    ] = None,
    query_keeps: Annotated[
        QueryEnd, typer.Option(help="Which tokens of a longer query; first is what REPLUG's code does.")
    ] = "last",
    passage_length: Annotated[
        int | None, typer.Option(help="Read so many tokens of a passage.", show_default="the encoder's")
    ] = None,
    faiss: Annotated[
        str, typer.Option(help="Flat is exact; SQfp16 in float16; IVF4096,Flat, IVF4096,PQ64, HNSW32: faster.")
    ] = _VECTORS.faiss,
    training_sample: Annotated[
        int, typer.Option(help="Train IVF and PQ on so many vectors, drawn at random.")
    ] = _VECTORS.training_sample,
    dtype: options.Dtype = "auto",
    device: Annotated[
        str, typer.Option(help="Where to encode: cpu, cuda, cuda:N, or auto: a GPU if there is one.")
    ] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace the vectors of this name.")] = False,
) -> None:
    """Encode the passages of an index and add the vectors to it, beside those that it has.

    The index changes in one step at the end: programs that have it open keep what they opened. Rerun the command after
    an interruption to resume: what was encoded is kept in a folder beside the index.
    """
    from ralm.cli.output import print_encoded
    from ralm.retrieval.dense.loading import load_encoder
    from ralm.retrieval.encoding import add_vectors

    refuse_idle(context, Use("training_sample", faiss != _VECTORS.faiss, "a --faiss index that is trained"))
    encoding = EncoderOptions(
        encoder=encoder,
        query_encoder=query_encoder,
        pooling=pooling,
        normalize=normalize,
        titles=titles,
        query_length=query_length,
        passage_length=passage_length,
        query_keeps=query_keeps,
        dtype=dtype,
    )
    manifest = add_vectors(
        index,
        load_encoder(encoding, device=device),
        VectorOptions(faiss=faiss, training_sample=training_sample),
        name=vectors,
        default=default,
        force=force,
    )
    print_encoded(index, manifest, vectors)

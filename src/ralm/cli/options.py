"""The options that several commands share. Defaults are those of the library's own option records."""

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from ralm.cli.idle import Use
from ralm.reading import beginning, plan
from ralm.reading.ensemble import EnsembleOptions, Weights
from ralm.retrieval.dense.options import QUERY_TOKENS
from ralm.retrieval.fusion import FusionMethod, FusionOptions
from ralm.retrieval.opening import RetrieverName, RetrieverOptions

RETRIEVAL: Final = (
    "retriever vectors query_encoder any_encoder nprobe ef_search fusion dense_weight "
    "forbidden_titles forbidden_documents cache"
)
"""The options that say how an index is asked, which do nothing without one."""
PLAN: Final = plan.PlanOptions()
FUSION: Final = FusionOptions()
ENSEMBLE: Final = EnsembleOptions()

Index = Annotated[Path, typer.Option("--index", help="Folder that `ralm index` made.", show_default=False)]
Model = Annotated[
    str,
    typer.Option("--lm", help="Causal language model: a hub name, a local folder, or ralm-tiny.", show_default=False),
]
Retriever = Annotated[
    RetrieverName,
    typer.Option(help="hybrid fuses BM25 and dense; random is the control: any passage, whatever the query."),
]
Vectors = Annotated[
    str | None,
    typer.Option(help="Dense: search the vectors of this name.", show_default="the default ones of the index"),
]
QueryEncoder = Annotated[
    str | None,
    typer.Option(help="Dense: encode queries with this.", show_default="the encoder that the index names"),
]
AnyEncoder = Annotated[
    bool, typer.Option("--any-encoder", help="Dense: allow another encoder than the index was built with.")
]
Nprobe = Annotated[
    int | None, typer.Option(help="Dense: lists that an IVF index reads for a query.", show_default="16")
]
EfSearch = Annotated[
    int | None, typer.Option(help="Dense: candidates that an HNSW index keeps for a query.", show_default="128")
]
Fusion = Annotated[
    FusionMethod,
    typer.Option(help="Hybrid: add up reciprocal ranks (rrf), or scores scaled between 0 and 1 (interpolation)."),
]
DenseWeight = Annotated[float, typer.Option(help="Hybrid: what dense weighs in interpolation; BM25 weighs the rest.")]
ForbiddenTitles = Annotated[
    Path | None, typer.Option(help="Never find passages of documents with these titles, one a line.")
]
ForbiddenDocuments = Annotated[
    Path | None, typer.Option(help="Never find passages of documents with these ids, one a line.")
]
Cache = Annotated[
    Path | None, typer.Option(help="Keep what is retrieved in this file, and take from it what was retrieved before.")
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    typer.Option(help="Number format of the weights; auto: as the model was saved."),
]
Device = Annotated[
    str,
    typer.Option(
        help="cpu, cuda, cuda:N; auto: a GPU if there is one; several with commas, or all GPUs, share the scoring; "
        "map: one copy spread over all."
    ),
]
Compile = Annotated[
    bool, typer.Option("--compile", help="Let torch compile the model's layers: slower to start, faster on long runs.")
]
Stride = Annotated[int, typer.Option(help="Retrieve every so many tokens.")]
QueryTokens = Annotated[
    int | None,
    typer.Option(help="Ask with the last so many tokens.", show_default=f"{PLAN.query_tokens}; dense: {QUERY_TOKENS}"),
]
DocumentTokens = Annotated[int, typer.Option(help="Cut a passage to so many tokens.")]
MaxLength = Annotated[int, typer.Option(help="Tokens that the model reads at once, passage included.")]
Windows = Annotated[
    plan.Windows,
    typer.Option(
        help="sliding: all the context that fits, for every stride; blocked: it advances a block at a time; rolling: "
        "those of REPLUG's code, of --stride and --query-tokens together."
    ),
]
Block = Annotated[int, typer.Option(help="Tokens in a block of blocked windows.")]
Semantics = Annotated[
    plan.Semantics,
    typer.Option(help="paper or official: follow the paper's text, or its published code, where they differ."),
]
Bos = Annotated[
    beginning.Bos,
    typer.Option(
        help="Special tokens that every reading begins with, passages or none: those that the tokenizer itself puts "
        "first (auto), its BOS in any case (always), or none (never)."
    ),
]
Reader = Annotated[
    Literal["in-context", "ensemble"],
    typer.Option(help="Read one passage, or several, each alone, and average what they predict (REPLUG)."),
]
Documents = Annotated[int, typer.Option(help="Passages of an ensemble.")]
EnsembleWeights = Annotated[
    Weights,
    typer.Option("--weights", help="Weights of an ensemble: softmax of the scores of retrieval, or all the same."),
]
WeightsTemperature = Annotated[float, typer.Option(help="Divide the scores by this before the softmax.")]
LimitTokens = Annotated[
    int | None, typer.Option(min=2, help="Take the beginning of the text only.", show_default="the whole text")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an output that ralm wrote before.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Seed = Annotated[int, typer.Option(help="Seed of whatever is drawn at random.")]


def query_tokens(retriever: RetrieverOptions, asked: int | None) -> int:
    """Tokens of a query: as many as were asked for, or as many as the papers ask such a retriever with."""
    return asked if asked is not None else QUERY_TOKENS if retriever.is_dense else PLAN.query_tokens


def retriever_uses(retriever: RetrieverOptions) -> list[Use]:
    """What the options of retrieval go with, where there is an index to retrieve from."""
    hybrid, interpolates = retriever.retriever == "hybrid", retriever.fusion.method == "interpolation"
    return [
        Use("vectors query_encoder any_encoder nprobe ef_search", retriever.is_dense, "--retriever dense or hybrid"),
        Use("fusion dense_weight", hybrid, "--retriever hybrid"),
        Use("dense_weight", interpolates, "--fusion interpolation"),
    ]

"""Which retriever to use over an index; knows nothing of how one is opened."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from ralm.options import Needs, Option, check_options, seed_option
from ralm.retrieval.dense.options import DenseSearchOptions
from ralm.retrieval.fusion import FusionOptions

RetrieverName = Literal["bm25", "dense", "hybrid", "random"]

_DENSE: Final = Needs('`retriever="dense"` or `"hybrid"`', lambda options: options.is_dense)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrieverOptions:
    """How the passages of an index are retrieved.

    `retriever`: bm25, dense, hybrid (both, fused as `fusion` says), or random, the control, which draws with `seed`.
    `weighting`: a folder that `ralm train bm25` made, with weights of query terms for BM25.
    `vectors`: the name of the set of vectors to search, if the index has several. `query_encoder` encodes queries
    instead of the encoder that the index names; with `any_encoder` its vectors may differ from those that the index was
    built with. `search`: how much work an approximate index does. `forbidden_titles` and `forbidden_documents`: files
    with one title or document id per line; passages of those documents are never found. `cache`: a file that stores
    retrievals and answers repeated ones.

    Raises UsageError if a value is invalid.
    """

    retriever: Annotated[
        RetrieverName,
        Option("hybrid fuses BM25 and dense; random is the control: any passage, whatever the query."),
    ] = "bm25"
    seed: Annotated[
        int,
        seed_option(Needs('`retriever="random"`', lambda options: options.retriever == "random")),
    ] = 0
    weighting: Annotated[
        Path | None,
        Option(
            "BM25: weights of query terms, a folder that `ralm train bm25` made.",
            needs=Needs('`retriever="bm25"` or `"hybrid"`', lambda options: options.retriever in ("bm25", "hybrid")),
        ),
    ] = None
    vectors: Annotated[
        str | None,
        Option("Dense: search the vectors of this name.", default_said="the default ones of the index", needs=_DENSE),
    ] = None
    query_encoder: Annotated[
        str | None,
        Option("Dense: encode queries with this.", default_said="the encoder that the index names", needs=_DENSE),
    ] = None
    any_encoder: Annotated[
        bool, Option("Dense: allow another encoder than the index was built with.", needs=_DENSE)
    ] = False
    search: Annotated[DenseSearchOptions, Option("How an approximate index is searched.", needs=_DENSE)] = field(
        default_factory=DenseSearchOptions
    )
    fusion: Annotated[
        FusionOptions,
        Option(
            "How the two rankings of hybrid retrieval become one.",
            needs=Needs('`retriever="hybrid"`', lambda options: options.retriever == "hybrid"),
        ),
    ] = field(default_factory=FusionOptions)
    forbidden_titles: Annotated[
        Path | None, Option("Never find passages of documents with these titles (a file with one per line).")
    ] = None
    forbidden_documents: Annotated[
        Path | None, Option("Never find passages of documents with these ids (a file with one per line).")
    ] = None
    cache: Annotated[Path | None, Option("File that caches retrievals and is reused by later runs.")] = None

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def is_dense(self) -> bool:
        """Whether queries are encoded."""
        return self.retriever in ("dense", "hybrid")

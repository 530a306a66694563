"""Retrievers by name and options: an index, what may not be found in it, and a cache, opened as one retriever.

Knows every retriever of this package; they are imported when they are opened, so that the options cost nothing.
"""

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

from ralm.bounds import check_seed
from ralm.errors import UsageError
from ralm.protocols import Retriever
from ralm.records import IntArray
from ralm.retrieval.dense.options import DenseSearchOptions
from ralm.retrieval.fusion import FusionOptions, Hybrid

if TYPE_CHECKING:
    from ralm.retrieval.dense.search import Dense
    from ralm.retrieval.index import Index

RetrieverName = Literal["bm25", "dense", "hybrid", "random"]

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrieverOptions:
    """How an index is searched. Raises UsageError where a value makes no sense."""

    retriever: RetrieverName = "bm25"
    """hybrid fuses BM25 and dense; random is the control: any passage, whatever the query."""
    seed: int = 0
    """Random: seed of what is drawn."""
    vectors: str | None = None
    """Dense: search the vectors of this name; None is the index's default."""
    query_encoder: str | None = None
    """Dense: encode queries with this; None is the encoder that the index names."""
    any_encoder: bool = False
    """Dense: allow another encoder than the index was built with."""
    search: DenseSearchOptions = field(default_factory=DenseSearchOptions)
    """Dense: how much work an approximate index does for a query."""
    fusion: FusionOptions = field(default_factory=FusionOptions)
    """Hybrid: how two rankings become one."""
    forbidden_titles: Path | str | None = None
    """Never find passages of documents with the titles in this file, one a line."""
    forbidden_documents: Path | str | None = None
    """Never find passages of documents with the ids in this file, one a line."""
    cache: Path | str | None = None
    """Keep what is retrieved in this file, and take from it what was retrieved before."""

    def __post_init__(self) -> None:
        if self.retriever not in get_args(RetrieverName):
            names = ", ".join(get_args(RetrieverName))
            raise UsageError(f"`retriever` must be one of {names}, not {self.retriever!r}.")
        check_seed("`seed`", self.seed)

    @property
    def is_dense(self) -> bool:
        """Whether queries are encoded."""
        return self.retriever in ("dense", "hybrid")


def open_retriever(index: "Index | Path | str", options: RetrieverOptions | None = None) -> Retriever:
    """The retriever over an index that the options describe, through a cache where one is named.

    How many passages are forbidden is logged at INFO. Raises what `open_index`, `Index.dense` and `CachedRetriever`
    raise, UsageError where the index was not built for the retriever, CorpusError where a file of titles or documents
    cannot be read.
    """
    from ralm.retrieval.index import Index, open_index

    options = options or RetrieverOptions()
    opened = index if isinstance(index, Index) else open_index(index)
    retriever = _retriever(opened, options, _forbidden(opened, options))
    if options.cache is None:
        return retriever
    from ralm.retrieval.cache import CachedRetriever

    return CachedRetriever(retriever, Path(options.cache))


def _forbidden(index: "Index", options: RetrieverOptions) -> IntArray | None:
    """The passages that may not be found; None where no option forbids any."""
    if options.forbidden_titles is None and options.forbidden_documents is None:
        return None
    from ralm.corpus.decontamination import read_lines, read_titles
    from ralm.retrieval.filters import passages_of

    titles, documents = options.forbidden_titles, options.forbidden_documents
    numbers = passages_of(
        index.passages,
        [] if titles is None else read_titles(Path(titles)),
        [] if documents is None else read_lines(Path(documents), "document ids"),
    )
    _LOG.info("%s of %s passages are forbidden", f"{len(numbers):,}", f"{len(index.passages):,}")
    return numbers


def _retriever(index: "Index", options: RetrieverOptions, forbidden: IntArray | None) -> Retriever:
    match options.retriever:
        case "bm25":
            return index.bm25 if forbidden is None else index.bm25.without(forbidden)
        case "dense":
            dense = _dense(index, options)
            return dense if forbidden is None else dense.without(forbidden)
        case "hybrid":
            lexical = _retriever(index, replace(options, retriever="bm25"), forbidden)
            return Hybrid(lexical, _retriever(index, replace(options, retriever="dense"), forbidden), options.fusion)
        case "random":
            from ralm.retrieval.random import RandomRetriever

            control = RandomRetriever(len(index.passages), options.seed)
            return control if forbidden is None else control.without(forbidden)


def _dense(index: "Index", options: RetrieverOptions) -> "Dense":
    encoder = None
    if options.query_encoder is not None:
        from ralm.retrieval.dense.loading import load_encoder

        encoder = load_encoder(replace(index.encoder_options(options.vectors), query_encoder=options.query_encoder))
    return index.dense(options.search, vectors=options.vectors, encoder=encoder, any_encoder=options.any_encoder)

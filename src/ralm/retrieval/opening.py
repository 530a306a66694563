"""Opens a retriever by name and options: an index, passages to exclude, and a cache, as one retriever.

Knows every retriever of this package. They are imported only when they are opened, so the options are cheap to import.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ralm.protocols import Retriever
from ralm.records import IntArray
from ralm.retrieval.bm25.weighting import open_weighting
from ralm.retrieval.fusion import Hybrid
from ralm.retrieval.options import RetrieverOptions

if TYPE_CHECKING:
    from ralm.retrieval.bm25.search import BM25
    from ralm.retrieval.dense.search import Dense
    from ralm.retrieval.index import Index

_LOG: Final = logging.getLogger(__name__)


def open_retriever(index: "Index | Path | str", options: RetrieverOptions | None = None) -> Retriever:
    """The retriever over an index that the options describe, with a cache if they name one.

    The number of forbidden passages is logged at INFO. Raises what `open_index`, `Index.dense` and `CachedRetriever`
    raise, UsageError if the index was not built for the retriever, CorpusError if a file of titles or documents cannot
    be read.
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
    """The passages that may not be found; None if no option forbids any."""
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
            bm25 = _bm25(index, options)
            return bm25 if forbidden is None else bm25.without(forbidden)
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


def _bm25(index: "Index", options: RetrieverOptions) -> "BM25":
    return index.bm25 if options.weighting is None else index.bm25.weighted(open_weighting(options.weighting))


def _dense(index: "Index", options: RetrieverOptions) -> "Dense":
    encoder = None
    if options.query_encoder is not None:
        from ralm.retrieval.dense.loading import load_encoder

        encoder = load_encoder(replace(index.encoder_options(options.vectors), query_encoder=options.query_encoder))
    return index.dense(options.search, vectors=options.vectors, encoder=encoder, any_encoder=options.any_encoder)

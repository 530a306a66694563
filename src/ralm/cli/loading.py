"""What several commands open before they work: an index or a file of passages. Models are in `models`."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ralm.cli.messages import note
from ralm.controls import path_text
from ralm.corpus.decontamination import read_lines, read_titles
from ralm.pipeline import FromFile, FromRetriever, PassageSource
from ralm.protocols import Retriever
from ralm.records import IntArray
from ralm.retrieval.arguments import config_of
from ralm.retrieval.cache import CachedRetriever
from ralm.retrieval.dense.loading import load_encoder
from ralm.retrieval.filters import WithoutPassages, passages_of
from ralm.retrieval.fusion import Hybrid
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.options import RetrieverOptions
from ralm.retrieval.random import RandomRetriever
from ralm.retrieval.retrieval_file import read_retrieval_file

if TYPE_CHECKING:
    from ralm.retrieval.dense.search import Dense


def open_source(index: Path | None, retrieved: Path | None, choice: RetrieverOptions) -> PassageSource | None:
    """The source of passages that the options name; none where they name none."""
    if index is not None:
        return open_retriever(index, choice)
    if retrieved is not None:
        strides = read_retrieval_file(retrieved)
        digest = hashlib.sha256(retrieved.read_bytes()).hexdigest()
        return FromFile(strides, config={"retrieved": path_text(retrieved), "sha256": digest})
    return None


def open_retriever(index: Path, choice: RetrieverOptions) -> FromRetriever:
    """An index as a source of passages, by the retriever chosen, through a cache where one is named."""
    opened = open_index(index)
    retriever = _retriever(opened, choice, _forbidden(opened, choice))
    if choice.cache is not None:
        retriever = CachedRetriever(retriever, choice.cache)
    config = {"index": path_text(index), "fingerprint": opened.fingerprint, **config_of(retriever)}
    return FromRetriever(retriever, opened.passages, config)


def _forbidden(index: Index, choice: RetrieverOptions) -> IntArray | None:
    """The passages that may not be found; None where no option forbids any."""
    if choice.forbidden_titles is None and choice.forbidden_documents is None:
        return None
    titles = [] if choice.forbidden_titles is None else read_titles(choice.forbidden_titles)
    document_ids = [] if choice.forbidden_documents is None else read_lines(choice.forbidden_documents, "document ids")
    numbers = passages_of(index.passages, titles, document_ids)
    note(f"{len(numbers):,} of {len(index.passages):,} passages are forbidden")
    return numbers


def _retriever(index: Index, choice: RetrieverOptions, forbidden: IntArray | None) -> Retriever:
    if choice.name == "random":
        count = len(index.passages)
        return RandomRetriever(count if forbidden is None else np.setdiff1d(np.arange(count), forbidden), choice.seed)
    found: list[Retriever] = []
    if choice.name != "dense":
        found.append(index.bm25 if forbidden is None else WithoutPassages(index.bm25, forbidden))
    if choice.is_dense:
        dense = _dense(index, choice)
        found.append(dense if forbidden is None else dense.without(forbidden))
    return found[0] if len(found) == 1 else Hybrid(found[0], found[1], choice.fusion)


def _dense(index: Index, choice: RetrieverOptions) -> "Dense":
    encoder = None
    if choice.query_encoder is not None:
        encoder = load_encoder(replace(index.encoder_options, query_encoder=choice.query_encoder))
    return index.dense(choice.search, encoder=encoder, any_encoder=choice.any_encoder)

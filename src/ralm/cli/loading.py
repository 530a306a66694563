"""What several commands open before they work: an index or a file of passages, a prompt. Models are in `models`."""

import hashlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import JsonValue

from ralm.cli.options import RetrieverChoice
from ralm.corpus.decontamination import read_lines, read_titles
from ralm.corpus.text import BYTE_ORDER_MARK, decode, read_text
from ralm.errors import TextError
from ralm.pipeline import FromFile, FromRetriever, PassageSource
from ralm.protocols import Retriever
from ralm.records import IntArray
from ralm.retrieval.cache import CachedRetriever
from ralm.retrieval.dense.loading import load_encoder
from ralm.retrieval.filters import Overfetching, WithoutPassages, passages_of
from ralm.retrieval.fusion import Hybrid
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.random import RandomRetriever
from ralm.retrieval.retrieval_file import read_retrieval_file

if TYPE_CHECKING:
    from ralm.retrieval.dense.search import Dense


def open_source(index: Path | None, retrieved: Path | None, choice: RetrieverChoice) -> PassageSource | None:
    """The source of passages that the options name; none where they name none."""
    if index is not None:
        return open_retriever(index, choice)
    if retrieved is not None:
        strides = read_retrieval_file(retrieved)
        digest = hashlib.sha256(retrieved.read_bytes()).hexdigest()
        return FromFile(strides, config={"retrieved": str(retrieved), "sha256": digest})
    return None


def open_retriever(index: Path, choice: RetrieverChoice) -> FromRetriever:
    """An index as a source of passages, by the retriever chosen, through a cache where one is named."""
    opened = open_index(index)
    forbidden = _forbidden(opened, choice)
    retriever, own = _retriever(opened, choice, forbidden)
    decisive = {"fingerprint": opened.fingerprint, "retriever": choice.name, **own}
    if forbidden is not None:
        decisive["forbidden"] = {
            "passages": len(forbidden),
            "sha256": hashlib.sha256(forbidden.astype("<i8").tobytes()).hexdigest(),
        }
    if choice.cache is not None:
        retriever = CachedRetriever(retriever, choice.cache, decisive)
    return FromRetriever(retriever, opened.passages, {"index": str(index), **decisive})


def _forbidden(index: Index, choice: RetrieverChoice) -> IntArray | None:
    """The passages that may not be found; None where no option forbids any."""
    if choice.forbidden_titles is None and choice.forbidden_documents is None:
        return None
    titles = [] if choice.forbidden_titles is None else read_titles(choice.forbidden_titles)
    document_ids = [] if choice.forbidden_documents is None else read_lines(choice.forbidden_documents, "document ids")
    numbers = passages_of(index.passages, titles, document_ids)
    sys.stderr.write(f"ralm: {len(numbers):,} of {len(index.passages):,} passages are forbidden\n")
    return numbers


def _retriever(
    index: Index, choice: RetrieverChoice, forbidden: IntArray | None
) -> tuple[Retriever, dict[str, JsonValue]]:
    """The retriever, and what decides its hits beside the index and the forbidden passages."""
    if choice.name == "random":
        allowed = np.setdiff1d(np.arange(len(index.passages)), [] if forbidden is None else forbidden)
        return RandomRetriever(allowed, choice.seed), {"seed": choice.seed}
    found: list[Retriever] = []
    config: dict[str, JsonValue] = {}
    if choice.name != "dense":
        found.append(index.bm25 if forbidden is None else WithoutPassages(index.bm25, forbidden))
        config |= index.bm25.config
    if choice.is_dense:
        dense = _dense(index, choice)
        found.append(dense if forbidden is None else Overfetching(dense, forbidden))
        config |= dense.config
    if choice.name != "hybrid":
        return found[0], config
    hybrid = Hybrid(found[0], found[1], choice.fusion)
    return hybrid, config | hybrid.config


def _dense(index: Index, choice: RetrieverChoice) -> "Dense":
    encoder = None
    if choice.query_encoder is not None:
        encoder = load_encoder(replace(index.encoder_options, query_encoder=choice.query_encoder))
    return index.dense(choice.search, encoder=encoder, any_encoder=choice.any_encoder)


def read_prompts(prompt: str | None, file: Path | None) -> list[str]:
    """The prompt itself, or standard input where it is `-`; without one, every line of a file."""
    if file is not None:
        return read_text(file).splitlines()
    return [_standard_input().rstrip("\n") if prompt == "-" else prompt or ""]


def _standard_input() -> str:
    """What is on standard input as text, whatever encoding the terminal has; TextError where it is not UTF-8."""
    text = decode(sys.stdin.buffer.read(), "standard input", TextError)
    return text.removeprefix(BYTE_ORDER_MARK).replace("\r\n", "\n")

"""Training sequences in the format of use: a passage from another document, truncated to 256 tokens, then the text.

Knows documents, passages and token ids; knows nothing of the model. Writes `rows-LENGTH.npy`, uint16, of shape [rows,
LENGTH + 1].
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ralm.records import Document
from tools.ralm_tiny.bm25 import Bm25, passages_of

PASSAGE_TOKENS = 256
QUERY_TOKENS = 32
KINDS = {"retrieved": 0.65, "random": 0.15, "none": 0.2}
"""What is put in front of the text, and how often."""

COMMON = 10_000
"""Terms of more passages than this are ignored in training queries: they cost the most and say the least."""


def main() -> None:
    """Tokenise the corpus, retrieve for every text, write the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with args.corpus.open(encoding="utf-8") as lines:
        documents = [Document(**json.loads(line)) for line in lines]
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    stream = Stream.of(documents, tokenizer)
    pool = Pool.of(documents, tokenizer)
    print(f"{len(stream.tokens):,} tokens, {len(pool.tokens):,} passages", flush=True)
    rows = np.fromiter(
        _rows(stream, pool, tokenizer, args.length, args.rows, args.seed),
        dtype=np.dtype((np.uint16, args.length + 1)),
        count=args.rows,
    )
    np.save(args.folder / f"rows-{args.length}.npy", rows)


@dataclass(frozen=True, eq=False)
class Stream:
    """All documents in their natural order, concatenated; related ones are neighbours."""

    tokens: NDArray[np.uint16]
    owners: NDArray[np.int32]
    """The document that each token belongs to."""

    @classmethod
    def of(cls, documents: Sequence[Document], tokenizer: PreTrainedTokenizerFast) -> "Stream":
        """Tokenise title and text of every document."""
        encoded = _encode([f"{d.title}\n{d.text}\n\n" if d.title else f"{d.text}\n\n" for d in documents], tokenizer)
        owners = np.repeat(np.arange(len(documents), dtype=np.int32), [len(e) for e in encoded])
        return cls(np.concatenate(encoded), owners)


@dataclass(frozen=True, eq=False)
class Pool:
    """The passages of all documents: their tokens, the documents they are from, and an index over them."""

    tokens: Sequence[NDArray[np.uint16]]
    owners: NDArray[np.int32]
    index: Bm25

    @classmethod
    def of(cls, documents: Sequence[Document], tokenizer: PreTrainedTokenizerFast) -> "Pool":
        """Split into passages, tokenise and index; a passage carries its document's title."""
        pieces = [(number, d.title, p) for number, d in enumerate(documents) for p in passages_of(d.text)]
        texts = [f"{title}\n{text}" if title else text for _, title, text in pieces]
        owners = np.array([number for number, _, _ in pieces], dtype=np.int32)
        return cls([t[:PASSAGE_TOKENS] for t in _encode(texts, tokenizer)], owners, Bm25.build(texts))


def _encode(texts: Sequence[str], tokenizer: PreTrainedTokenizerFast) -> list[NDArray[np.uint16]]:
    backend = tokenizer.backend_tokenizer
    return [np.array(e.ids, dtype=np.uint16) for e in backend.encode_batch_fast(texts, add_special_tokens=False)]


def _rows(
    stream: Stream, pool: Pool, tokenizer: PreTrainedTokenizerFast, length: int, count: int, seed: int
) -> Iterator[NDArray[np.uint16]]:
    """Rows in random order; the texts start a fixed step apart, so that the whole corpus is covered evenly."""
    rng = np.random.default_rng(seed)
    starts = rng.permutation(np.linspace(0, len(stream.tokens) - length - 2, count).astype(np.int64))
    kinds = rng.choice(list(KINDS), size=count, p=list(KINDS.values()))
    for start, kind in zip(starts, kinds, strict=True):
        text = stream.tokens[start : start + length + 1]
        if kind == "none":
            yield text
            continue
        if kind == "random":
            passage = pool.tokens[int(rng.integers(len(pool.tokens)))]
        else:
            owners = np.unique(stream.owners[start : start + length + 1])
            passage = _retrieved(text[: length - PASSAGE_TOKENS // 2], owners, pool, tokenizer, rng)
        yield np.concatenate([passage, text])[: length + 1]


def _retrieved(
    text: NDArray[np.uint16],
    owners: NDArray[np.int32],
    pool: Pool,
    tokenizer: PreTrainedTokenizerFast,
    rng: np.random.Generator,
) -> NDArray[np.uint16]:
    """The best passage of another document for 32 tokens somewhere in the text; empty if there is none."""
    begin = rng.integers(0, len(text) - QUERY_TOKENS)
    query = tokenizer.decode(text[begin : begin + QUERY_TOKENS].astype(np.int64))
    hits = pool.index.search(query, 32, most_postings=COMMON)
    others = hits[~np.isin(pool.owners[hits], owners)]
    return pool.tokens[others[0]] if len(others) else text[:0]


if __name__ == "__main__":
    main()

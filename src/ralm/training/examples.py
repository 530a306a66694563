"""Samples examples from training text: prefixes x with their continuations y.

Documents are cut into sequences of consecutive tokens. Examples are drawn from randomly chosen sequences: x is the
sequence up to a place, y its next tokens. Examples of one sequence are neighbours: a language model reads a passage
once for several of them. Memory grows with the number of examples and the longest document, not with the text.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pydantic import JsonValue

from ralm.corpus.decontamination import NGRAM, run_hash, runs_of
from ralm.corpus.documents import Fields
from ralm.corpus.sources import fingerprint_of, read_documents
from ralm.corpus.words import bare_words
from ralm.errors import TextError
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import FullTokenizer, Tokenizer
from ralm.records import Document, IntArray
from ralm.retrieval.index import Index
from ralm.terminal import path_text
from ralm.training.options import ExampleOptions

_CHARACTERS_AROUND: Final = 400
"""Characters on each side of a continuation that hold the words of the runs that overlap it."""


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A prefix x and its continuation y (int64), from token `begin` on; `runs` are hashes of 13 words that touch y."""

    document_id: str
    begin: int
    prefix: IntArray
    continuation: IntArray
    runs: Collection[int]


EXAMPLE_SCHEMA: Final = pa.schema(
    {
        "example": pa.int64(),
        "document_id": pa.string(),
        "begin": pa.int64(),
        **dict.fromkeys(("query", "prefix", "continuation"), pa.string()),
        "prefix_tokens": pa.list_(pa.int32()),
        "continuation_tokens": pa.list_(pa.int32()),
        "runs": pa.list_(pa.uint64()),
    }
)


def sample_examples(documents: Iterable[Document], tokenizer: Tokenizer, options: ExampleOptions) -> list[Example]:
    """Return examples from randomly chosen sequences of documents, in their order; TextError if there are none."""
    tokenizer = full_tokenizer(tokenizer)
    random = np.random.default_rng(options.seed)
    chosen: list[tuple[float, int, list[Example]]] = []
    """A heap of the sequences with the smallest random numbers, the largest of them first."""
    most, count = options.examples, 0
    sequences = (sequence for document in documents for sequence in _sequences(document, tokenizer, options))
    for number, sequence in enumerate(sequences, start=1):
        key = -float(random.random())
        if count < most or key > chosen[0][0]:
            examples = _examples(*sequence, options, number)
            heapq.heappush(chosen, (key, number, examples))
            count += len(examples)
            while count - len(chosen[0][2]) >= most:
                count -= len(heapq.heappop(chosen)[2])
    if not chosen:
        raise TextError(
            f"no document has {options.prefix_tokens + options.continuation_tokens} tokens, so there are no examples: "
            "lower `prefix_tokens`, or give longer documents."
        )
    if count > most:
        del chosen[0][2][most - count :]
    return [example for _, _, examples in sorted(chosen, key=lambda entry: entry[1]) for example in examples]


def queries_of(examples: Sequence[Example], tokenizer: Tokenizer, query_tokens: int) -> list[str]:
    """Return the end of each prefix as text."""
    return [tokenizer.decode(example.prefix[-query_tokens:]) for example in examples]


def text_config(sources: Sequence[str], fields: Fields | None, *, skip_bad: bool) -> dict[str, JsonValue]:
    """Return what decides the documents that are read from sources."""
    fields = fields or Fields()
    return {
        "sources": [path_text(source) for source in sources],
        "sha256": fingerprint_of(sources),
        "fields": {"id": fields.id, "title": fields.title, "text": fields.text},
        "skip_bad": skip_bad,
    }


def read_training_text(
    index: Index, sources: Sequence[str], fields: Fields | None, *, skip_bad: bool = False
) -> Iterator[Document]:
    """Read documents with ids as in the index, so that an example's own document is recognised there."""
    built_of = index.manifest.settings.get("sources")
    several = len(built_of if isinstance(built_of, list) else sources) > 1
    return read_documents(sources, fields, skip_bad=skip_bad, source_in_ids=several)


def _sequences(
    document: Document, tokenizer: FullTokenizer, options: ExampleOptions
) -> Iterator[tuple[Document, int, IntArray, IntArray]]:
    """Yield the sequences that are long enough: their first tokens, ids (int64, N) and spans (int64, N x 2)."""
    size = options.sequence_tokens
    tokens, spans_N2 = tokenizer.encode_with_spans(document.text)
    for begin in range(0, len(tokens), size):
        part = tokens[begin : begin + size]
        if len(part) >= min(size, options.prefix_tokens + options.continuation_tokens):
            yield document, begin, part, spans_N2[begin : begin + size]


def _examples(
    document: Document, begin: int, tokens: IntArray, spans_N2: IntArray, options: ExampleOptions, number: int
) -> list[Example]:
    """Return examples at consecutive places of a sequence, from a random one on: they share many candidates."""
    length = options.continuation_tokens
    places = np.arange(options.prefix_tokens, len(tokens) - length + 1, length)
    if len(places) > options.per_sequence:
        first = np.random.default_rng([options.seed, number]).integers(len(places) - options.per_sequence + 1)
        places = places[first : first + options.per_sequence]
    tokens = tokens.copy()  # not a view that keeps the tokens of the whole document
    return [
        Example(
            document_id=document.id,
            begin=begin + place,
            prefix=tokens[:place],
            continuation=tokens[place : place + length],
            runs=_runs(document.text, int(spans_N2[place, 0]), int(spans_N2[place + length - 1, 1])),
        )
        for place in places.tolist()
    ]


def _runs(text: str, begin: int, end: int) -> Sequence[int]:
    """Return hashes of the runs of 13 words that overlap the characters from `begin` to `end`."""
    while begin and text[begin - 1].isalnum() and text[begin].isalnum():
        begin -= 1
    while end < len(text) and text[end - 1].isalnum() and text[end].isalnum():
        end += 1
    inside = bare_words(text[begin:end])
    if not inside:
        return ()
    before = bare_words(text[max(0, begin - _CHARACTERS_AROUND) : begin])[-(NGRAM - 1) :]
    after = bare_words(text[end : end + _CHARACTERS_AROUND])[: NGRAM - 1]
    return [*map(run_hash, runs_of([*before, *inside, *after], NGRAM))]

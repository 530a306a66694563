"""Samples examples from training text: prefixes x with their continuations y.

Documents are cut into sequences of consecutive tokens. Examples are drawn from randomly chosen sequences: x is the
sequence up to a place, y its next tokens. Examples of one sequence are neighbours: they have the same beginning of x
and many of the same candidates, so a language model reads a passage once for several of them.

Memory grows with the number of examples and with the longest document, not with the text.
"""

import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pydantic import JsonValue

from ralm.corpus.decontamination import NGRAM, run_hash
from ralm.corpus.documents import Fields
from ralm.corpus.sources import fingerprint_of
from ralm.errors import TextError
from ralm.lm.long_texts import text_chunks
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import FullTokenizer, Tokenizer
from ralm.records import Document, IntArray
from ralm.retrieval.index import Index
from ralm.terminal import path_text
from ralm.training.options import ExampleOptions

_WORD: Final = re.compile(r"\w+")
_CHARACTERS_AROUND: Final = 400
"""Characters on each side of a continuation that hold the words of the runs that overlap it."""


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A prefix x and its continuation y as token ids (int64), from the document `document_id`, where y begins at token
    `begin`. `runs` are hashes of the runs of 13 words that overlap y in the document."""

    document_id: str
    begin: int
    prefix: IntArray
    continuation: IntArray
    runs: Sequence[int]


TABLE: Final = pa.schema(
    {
        "document_id": pa.string(),
        "begin": pa.int64(),
        "prefix_tokens": pa.list_(pa.int32()),
        "continuation_tokens": pa.list_(pa.int32()),
        "runs": pa.list_(pa.uint64()),
    }
)


def sample_examples(documents: Iterable[Document], tokenizer: Tokenizer, options: ExampleOptions) -> list[Example]:
    """Examples from randomly chosen sequences of the documents, in the order of the text; the same for equal documents,
    tokenizer and options.

    There are fewer than `options.examples` if the text has no more. Raises TextError if it has none.
    """
    tokenizer = full_tokenizer(tokenizer)
    chosen = _Chosen(options)
    for document in documents:
        for begin, tokens, spans_N2 in _sequences(document, tokenizer, options):
            if chosen.wants_next():
                chosen.add(_examples(document, begin, tokens, spans_N2, options, chosen.seen))
    examples = chosen.in_order()
    if not examples:
        raise TextError(
            f"no document has {options.prefix_tokens + options.continuation_tokens} tokens, so there are no examples: "
            "lower `prefix_tokens`, or give longer documents."
        )
    return examples


def as_table(examples: Iterable[Example]) -> pa.Table:
    """Examples as a table with the columns of `TABLE`."""
    columns: dict[str, list[object]] = {name: [] for name in TABLE.names}
    for one in examples:
        for name, value in zip(
            TABLE.names, (one.document_id, one.begin, one.prefix, one.continuation, one.runs), strict=True
        ):
            columns[name].append(value)
    return pa.table(columns, TABLE)


def from_table(table: pa.Table) -> list[Example]:
    """The examples of a table."""
    return [
        Example(
            document_id=row["document_id"],
            begin=row["begin"],
            prefix=np.array(row["prefix_tokens"], dtype=np.int64),
            continuation=np.array(row["continuation_tokens"], dtype=np.int64),
            runs=row["runs"],
        )
        for row in table.to_pylist()
    ]


def text_config(sources: Sequence[str], fields: Fields | None, *, skip_bad: bool) -> dict[str, JsonValue]:
    """What decides the documents that are read from sources."""
    fields = fields or Fields()
    return {
        "sources": [path_text(source) for source in sources],
        "sha256": fingerprint_of(sources),
        "fields": {"id": fields.id, "title": fields.title, "text": fields.text},
        "skip_bad": skip_bad,
    }


def begins_with_source(index: Index, sources: Sequence[str]) -> bool:
    """Whether ids of documents begin with their source: as in the index, so that an example's own document is
    recognised there."""
    built_of = index.manifest.settings.get("sources")
    return len(built_of) > 1 if isinstance(built_of, list) else len(sources) > 1


class _Chosen:
    """The sequences with the smallest of random numbers, as many as have the number of examples that is wanted."""

    def __init__(self, options: ExampleOptions) -> None:
        self._wanted = options.examples
        self._random = np.random.default_rng(options.seed)
        self._heap: list[tuple[float, int, list[Example]]] = []
        self._count = 0
        self._drawn = 0.0
        self.seen = 0

    def wants_next(self) -> bool:
        """Draw the random number of the next sequence; whether it is among the chosen so far."""
        self._drawn = float(self._random.random())
        self.seen += 1
        return self._count < self._wanted or self._drawn < -self._heap[0][0]

    def add(self, examples: list[Example]) -> None:
        """Add the examples of that sequence, and drop sequences that are no longer needed."""
        heapq.heappush(self._heap, (-self._drawn, self.seen, examples))
        self._count += len(examples)
        while self._count - len(self._heap[0][2]) >= self._wanted:
            self._count -= len(heapq.heappop(self._heap)[2])

    def in_order(self) -> list[Example]:
        """The examples in the order of the text; of the sequence that was drawn last only as many as are wanted."""
        if self._count > self._wanted:
            key, seen, last = heapq.heappop(self._heap)
            heapq.heappush(self._heap, (key, seen, last[: len(last) - (self._count - self._wanted)]))
        return [one for _, _, some in sorted(self._heap, key=lambda entry: entry[1]) for one in some]


def _sequences(
    document: Document, tokenizer: FullTokenizer, options: ExampleOptions
) -> Iterator[tuple[int, IntArray, IntArray]]:
    """The sequences of a document that are long enough: first token, tokens (int64, N), spans (int64, N x 2)."""
    size, least = options.sequence_tokens, options.prefix_tokens + options.continuation_tokens
    tokens, spans_N2 = np.zeros(0, dtype=np.int64), np.zeros((0, 2), dtype=np.int64)
    begin = 0
    for piece in tokenizer.encode_pieces(text_chunks(document.text)):
        tokens = np.concatenate([tokens, piece.tokens])
        spans_N2 = np.concatenate([spans_N2, piece.spans_N2])
        whole = len(tokens) // size * size
        for at in range(0, whole, size):
            yield begin + at, tokens[at : at + size], spans_N2[at : at + size]
        begin, tokens, spans_N2 = begin + whole, tokens[whole:], spans_N2[whole:]
    if len(tokens) >= least:
        yield begin, tokens, spans_N2


def _examples(
    document: Document, begin: int, tokens: IntArray, spans_N2: IntArray, options: ExampleOptions, sequence: int
) -> list[Example]:
    """Examples at consecutive places of a sequence, from a random one on: neighbours share many candidates."""
    length = options.continuation_tokens
    places = np.arange(options.prefix_tokens, len(tokens) - length + 1, length)
    if len(places) > options.per_sequence:
        first = np.random.default_rng([options.seed, sequence]).integers(len(places) - options.per_sequence + 1)
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
    """Hashes of the runs of 13 words that overlap the characters from `begin` to `end`."""
    first = max(0, begin - _CHARACTERS_AROUND)
    found = list(_WORD.finditer(text[first : end + _CHARACTERS_AROUND].lower()))
    words = [one.group() for one in found]
    inside = [i for i, one in enumerate(found) if one.start() + first < end and one.end() + first > begin]
    if not inside:
        return ()
    starts = range(max(0, inside[0] - NGRAM + 1), min(inside[-1], len(words) - NGRAM) + 1)
    return [run_hash(words[start : start + NGRAM]) for start in starts]

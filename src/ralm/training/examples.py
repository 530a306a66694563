"""Samples examples from training text: prefixes x with their continuations y.

Documents are cut into sequences of consecutive tokens. Examples are drawn from randomly chosen sequences: x is the
sequence up to a place, y its next tokens. Examples of one sequence are neighbours: a language model reads a passage
once for several of them. Memory grows with the number of examples and the longest document, not with the text.

Their candidates are passages that a retriever finds. A language model scores how likely each makes the continuation.
`OnlineExamples` does all this, for signals and during a training whose candidates change. Letters of shapes: E
examples, B those of a batch, K candidates, T tokens of a continuation.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pydantic import JsonValue

from ralm.corpus.decontamination import NGRAM, run_hash, runs_of
from ralm.corpus.documents import Fields
from ralm.corpus.sources import fingerprint_of, read_documents
from ralm.corpus.words import bare_words
from ralm.errors import TextError, UsageError
from ralm.lm.scoring import Scorer
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import FullTokenizer, LanguageModel, Retriever, Tokenizer
from ralm.reading.tokens import PassageDocuments
from ralm.records import NO_PASSAGE, Document, DoubleArray, FloatArray, Hits, IntArray, Passages, Request
from ralm.retrieval.index import Index, open_index
from ralm.terminal import path_text, track
from ralm.training.gains import ReadCandidates
from ralm.training.options import CandidateOptions, ExampleOptions, LSROptions
from ralm.validation import config_of, retrieve_checked

_CHARACTERS_AROUND: Final = 400
"""Characters on each side of a continuation that hold the words of the runs that overlap it."""

_MORE: Final = 8
"""How many more hits are asked for at first, since some may be skipped."""


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


def find_candidates(
    examples: Sequence[Example], queries: Sequence[str], retriever: Retriever, passages: Passages, k: int
) -> Hits:
    """Return the k best passages for each example, without those that give its continuation away."""

    @cache
    def read(number: int) -> tuple[str, frozenset[int]]:
        """Return the document of a passage, and hashes of the runs of words in it."""
        passage = passages[number]
        if not passage.document_id:
            raise UsageError(
                f"passage {number} has no document id, so passages of an example's own document cannot be skipped: "
                "build the index with ids."
            )
        return passage.document_id, frozenset(map(run_hash, runs_of(bare_words(passage.contents), NGRAM)))

    def is_allowed(example: Example, number: int) -> bool:
        document_id, runs = read(number)
        return document_id != example.document_id and runs.isdisjoint(example.runs)

    pairs: list[list[tuple[int, float]]] = [[] for _ in examples]
    asked, depth = list(range(len(examples))), k + _MORE
    while asked:
        hits = retrieve_checked(retriever, [queries[i] for i in asked], depth, len(passages))
        for row, i in enumerate(asked):
            pairs[i] = list(islice((hit for hit in hits.of(row) if is_allowed(examples[i], hit[0])), k))
        if depth >= len(passages):
            break
        asked = [i for row, i in enumerate(asked) if len(pairs[i]) < k and len(hits.of(row)) == depth]
        depth *= 2
    return Hits.from_pairs(pairs)


def score_candidates(
    examples: Sequence[Example], numbers_of: Sequence[Sequence[int]], documents: PassageDocuments, scorer: Scorer
) -> list[list[FloatArray]]:
    """Return log-probabilities (float32, T) of continuations in [passage; prefix; continuation]."""
    requests = [
        Request(document=documents[number], context=example.prefix, targets=example.continuation)
        for example, numbers in zip(examples, numbers_of, strict=True)
        for number in numbers
    ]
    scored = iter(scorer.log_probs(requests))
    return [[next(scored) for _ in numbers] for numbers in numbers_of]


def check_fits(model: LanguageModel, sequence_tokens: int, document_tokens: int) -> None:
    """Raise UsageError if the model cannot read a passage and a sequence at once."""
    if document_tokens + sequence_tokens > model.max_length:
        raise UsageError(
            f"`document_tokens` {document_tokens} and {sequence_tokens} tokens of text do not fit together into the "
            f"{model.max_length} that {model.name} can read: lower it, or give another model."
        )


class OnlineExamples:
    """Examples sampled from training text, with the passages of an index as candidates, scored by a language model.

    Nothing is kept. Examples are given by number (int64, B), from 0. `config` holds the text, the language model and
    the options, `documents_E` the documents of the examples.

    Args:
        sources: Training text: files, folders, URLs or data sets.
        index: Index of the candidates, or its folder.
        model: Language model that scores.
        options: How examples are sampled.
        candidates: How many candidates an example has, and how they are read.
        fields: Fields of the records of sources.
        skip_bad: Skip records that cannot be read.

    Raises:
        UsageError: If the options do not fit the model.
        TextError: If the text has no examples. `read_documents` and `open_index` raise others.
    """

    def __init__(
        self,
        sources: str | Sequence[str],
        index: Index | Path | str,
        model: LanguageModel,
        options: ExampleOptions | None = None,
        candidates: CandidateOptions | None = None,
        *,
        fields: Fields | None = None,
        skip_bad: bool = False,
    ) -> None:
        self.options, self.reading = options or ExampleOptions(), candidates or CandidateOptions()
        check_fits(model, self.options.sequence_tokens, self.reading.document_tokens)
        index = index if isinstance(index, Index) else open_index(index)
        self._passages, self._model = index.passages, model
        sources = [sources] if isinstance(sources, str) else list(sources)
        self.config: dict[str, JsonValue] = {
            "model": config_of(model, "language model"),
            "examples": asdict(self.options),
            "candidates": asdict(self.reading),
            "text": text_config(sources, fields, skip_bad=skip_bad),
        }
        documents = track(read_training_text(index, sources, fields, skip_bad=skip_bad), "Reading")
        self._examples = sample_examples(documents, model.tokenizer, self.options)
        self.documents_E: Sequence[str] = [example.document_id for example in self._examples]

    def __len__(self) -> int:
        return len(self.documents_E)

    def table(self, examples_B: IntArray) -> pa.Table:
        """Return the examples as rows with `EXAMPLE_SCHEMA`."""
        examples, decode = self._chosen(examples_B), self._model.tokenizer.decode
        columns = {
            "example": examples_B,
            "document_id": [example.document_id for example in examples],
            "begin": [example.begin for example in examples],
            "query": self.queries(examples_B),
            "prefix": [decode(example.prefix) for example in examples],
            "continuation": [decode(example.continuation) for example in examples],
            "prefix_tokens": [example.prefix for example in examples],
            "continuation_tokens": [example.continuation for example in examples],
            "runs": [[*example.runs] for example in examples],
        }
        return pa.table(columns, EXAMPLE_SCHEMA)

    def queries(self, examples_B: IntArray) -> Sequence[str]:
        """Return the end of each prefix."""
        return queries_of(self._chosen(examples_B), self._model.tokenizer, self.options.query_tokens)

    def candidates(self, examples_B: IntArray, retriever: Retriever, k: int) -> Hits:
        """Return the k best passages for each example, without those that give its continuation away."""
        queries = self.queries(examples_B)
        return find_candidates(self._chosen(examples_B), queries, retriever, self._passages, k)

    def log_probs(self, examples_B: IntArray, hits: Hits, *, alone: bool = False) -> list[list[FloatArray]]:
        """Return log-probabilities (float32, T) of continuations after each hit, first without one if `alone`."""
        before = [NO_PASSAGE] if alone else []
        numbers_of = [before + [number for number, _ in hits.of(row)] for row in range(len(hits))]
        reading = self.reading
        documents = PassageDocuments(self._passages, self._model.tokenizer, reading.document_tokens, reading.bos)
        return score_candidates(self._chosen(examples_B), numbers_of, documents, Scorer(self._model))

    def score(self, examples_B: IntArray, hits: Hits, loss: LSROptions) -> DoubleArray:
        """Return what Q is the softmax of, for each continuation after each hit (float64, B x K; -inf is padding)."""
        scores_BK = np.full(hits.numbers_QK.shape, -np.inf)
        for row, after in enumerate(self.log_probs(examples_B, hits)):
            totals_K = np.array([log_probs.sum(dtype=np.float64) for log_probs in after])
            scores_BK[row, : len(after)] = loss.lm_scores(totals_K, self.options.continuation_tokens)
        return scores_BK

    def read(self, examples_B: IntArray, retriever: Retriever, k: int) -> tuple[DoubleArray, ReadCandidates]:
        """Return the log-probabilities without a passage (B x T), and after what a retriever finds, if anything."""
        hits = self.candidates(examples_B, retriever, k)
        width = hits.numbers_QK.shape[1]
        scores_BK = np.full((len(examples_B), max(1, width)), -np.inf)
        scores_BK[:, :width] = np.where(hits.numbers_QK == NO_PASSAGE, -np.inf, hits.scores_QK)
        read_BKT = np.zeros((len(examples_B), 1 + scores_BK.shape[1], self.options.continuation_tokens))
        for row, after in enumerate(self.log_probs(examples_B, hits, alone=True)):
            read_BKT[row, : len(after)] = after
        none_B = np.isneginf(scores_BK).all(axis=1)
        read_BKT[none_B, 1], scores_BK[none_B, 0] = read_BKT[none_B, 0], 0.0
        return read_BKT[:, 0], ReadCandidates(read_BKT[:, 1:], scores_BK)

    def _chosen(self, examples_B: IntArray) -> list[Example]:
        return [self._examples[number] for number in examples_B.tolist()]

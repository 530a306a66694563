"""The seams of ralm: what a stage may ask of the parts it is handed, one to three verbs each.

Whatever has these verbs fits: the parts of this package, a fake in a test, or a user's own class.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from pydantic import JsonValue

from ralm.errors import RetrieverError, UsageError
from ralm.progress import Advance
from ralm.records import NO_PASSAGE, FloatArray, Hits, IntArray, Passage, Request, SpecialTokens


class Tokenizer(Protocol):
    """Text to the language model's token ids, and back."""

    @property
    def fingerprint(self) -> str:
        """A short hash of what the tokenizer does: equal for equal tokenizers, whatever folder they came from."""

    @property
    def end_token(self) -> int | None:
        """The id of the end-of-text token, where there is one."""

    @property
    def special_tokens(self) -> SpecialTokens:
        """What the tokenizer puts around a text by itself, and its BOS."""

    @property
    def unknown_token(self) -> int | None:
        """The id of the token that stands for what the tokenizer does not know, where there is one."""

    def token_of(self, text: str) -> int | None:
        """The id of the token that is written exactly so, else of the unknown token; None where there is neither."""

    def encode(self, text: str) -> IntArray:
        """Token ids (int64) of a text, without special tokens."""

    def encode_with_spans(self, text: str) -> tuple[IntArray, IntArray]:
        """The same ids (int64, N), and the first and one past the last character of each (int64, N x 2)."""

    def encode_document(self, text: str, max_tokens: int) -> IntArray:
        """Token ids (int64) of a document as it stands in the prompt: with the special tokens that the tokenizer adds
        by itself (a BOS for OPT and LLaMA), cut to `max_tokens`."""

    def decode(self, tokens: IntArray) -> str:
        """The text of token ids, special tokens written out."""


class Continuations(Protocol):
    """Texts that a language model is in the middle of."""

    def next_log_probs(self, texts: Sequence[IntArray]) -> FloatArray:
        """Natural log-probabilities (float32, B x V) of each possible next token of B texts of at least one token.

        Each text is read as if it stood alone. What it shares with those of the call before need not be read again.
        """


class LanguageModel(Protocol):
    """A frozen causal language model: token ids in, log-probabilities out."""

    @property
    def name(self) -> str:
        """What the model is called in messages: a hub name or a folder."""

    @property
    def config(self) -> dict[str, JsonValue]:
        """Everything about the model and its tokenizer that decides the figures of a run."""

    @property
    def max_length(self) -> int:
        """The most tokens that the model can read at once."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own tokenizer."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """The token ids that end a text, so that generation stops at them; may be empty."""

    def log_probs(self, requests: Sequence[Request]) -> list[FloatArray]:
        """For each request the natural log-probability (float32) of each of its targets, in order."""

    def continuations(self) -> Continuations:
        """Stand ready to go on from texts, none of which was read yet."""


class Encoder(Protocol):
    """Texts in, vectors of D dimensions out: the larger an inner product, the likelier a passage answers a query."""

    @property
    def dimension(self) -> int:
        """D."""

    @property
    def config(self) -> dict[str, JsonValue]:
        """Everything about the encoder that decides the vectors."""

    @property
    def query_fingerprint(self) -> str:
        """A short hash of what encodes queries: equal for equal weights, whatever folder they came from."""

    @property
    def query_config(self) -> dict[str, JsonValue]:
        """Everything about the encoder that decides the vectors of queries; under `reading`, how it reads a text."""

    def text_of(self, passage: Passage) -> str:
        """What is read of a passage."""

    def encode_passages(self, passages: Sequence[Passage], advance: Advance | None = None) -> FloatArray:
        """The vectors (float32, P x D) of P passages; `advance` is called as they are done."""

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        """The vectors (float32, Q x D) of Q queries."""


class Retriever(Protocol):
    """Queries in, passages out.

    Those of this package also say what decides their hits, as `config`, which a cache needs to know; and, as `stable`,
    up to how many hits the first of them are those that fewer hits would be, which spares a sweep retrievals.
    """

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """The k best passages for each query, all queries at once; in fewer columns where there are fewer."""


def check_length(model: LanguageModel, max_length: int) -> None:
    """Raise UsageError where a model would be asked to read more than it can."""
    if max_length > model.max_length:
        raise UsageError(
            f"`max_length` {max_length} is beyond the {model.max_length} tokens that {model.name} can read; "
            f"give `max_length` {model.max_length} or less."
        )


def ask(retriever: Retriever, queries: Sequence[str], k: int, passages: int | None = None) -> Hits:
    """The k best of so many passages for each query, checked, and at least one column; `None`: not known how many.

    Raises RetrieverError where what the retriever gives are no hits of these queries.
    """
    k = k if passages is None else min(k, max(passages, 1))
    hits = retriever.retrieve(queries, k)
    fault = _fault(hits, len(queries), k, passages)
    if fault:
        raise RetrieverError(f"the retriever {type(retriever).__name__} {fault}; see `Hits` for what it should give.")
    if hits.numbers_QK.shape[1] == 0:
        return Hits.none(len(queries), 1)
    return Hits(hits.numbers_QK.astype(np.int64, copy=False), hits.scores_QK.astype(np.float32, copy=False))


def _fault(hits: Hits, queries: int, k: int, passages: int | None) -> str:
    """What is wrong with hits; empty where nothing is."""
    if not isinstance(hits, Hits):
        return f"gives {type(hits).__name__} and not Hits"
    numbers, scores = hits.numbers_QK, hits.scores_QK
    if len(hits) != queries or numbers.shape[1] > k:
        rows, columns = numbers.shape
        return f"gives {rows:,} rows of {columns:,} for {queries:,} queries and k = {k:,}"
    if numbers.dtype.kind not in "iu" or scores.dtype.kind not in "fiu":
        return f"gives numbers of type {numbers.dtype} and scores of type {scores.dtype}"
    if not (np.abs(scores, dtype=np.float64) <= np.finfo(np.float32).max).all():
        return "gives a score that is not finite"
    return _fault_of_numbers(numbers.astype(np.int64, copy=False), passages)


def _fault_of_numbers(numbers: IntArray, passages: int | None) -> str:
    most = np.iinfo(np.int64).max if passages is None else passages
    wrong = (numbers < NO_PASSAGE) | (numbers >= most)
    if wrong.any():
        known = "" if passages is None else f" of {passages:,}"
        return f"gives passage {numbers[wrong][0]}{known}"
    none = numbers == NO_PASSAGE
    if (none[:, :-1] & ~none[:, 1:]).any():
        return "gives a passage behind a place without one"
    rising = np.sort(numbers, axis=1)
    twice = (rising[:, 1:] == rising[:, :-1]) & (rising[:, 1:] != NO_PASSAGE)
    if twice.any():
        return f"gives passage {rising[:, 1:][twice][0]} twice for one query"
    return ""

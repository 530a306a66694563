"""Texts and passages as token ids: the prepared text with its plan, and the documents that are put before a context."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Final, Self

import numpy as np

from ralm.errors import ModelError, RalmWarning, TextError, UsageError
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import FullTokenizer, Tokenizer
from ralm.reading.plan import Bos, Plan, PlanOptions, join_plans, make_plan
from ralm.records import NO_PASSAGE, IntArray, Passage, Passages

_NOTHING: Final[IntArray] = np.zeros(0, dtype=np.int64)
_MAX_UNKNOWN: Final = 0.5
_BETWEEN: Final = "\n\n"
"""What stands between two documents in a text that shows them."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedText:
    """A text of one or several documents: D first characters, N tokens, their spans (all int64), and its plan.

    A span is the first and one past the last character of a token; tokens around a document have empty ones.
    `unknown_tokens` counts those that stand for text that the tokenizer does not know.
    """

    documents: Sequence[str]
    begins_D: IntArray
    tokens: IntArray
    spans_N2: IntArray
    plan: Plan
    unknown_tokens: int = 0

    @property
    def text(self) -> str:
        """The documents, with an empty line between two."""
        return _BETWEEN.join(self.documents)

    def document_of(self, row: int) -> int:
        """Return the number of the document that a row is in."""
        return int(self.begins_D.searchsorted(self.spans_N2[self.plan.first_R[row], 0], side="right")) - 1

    def document_begin(self, row: int) -> int:
        """Return the character of the text that the document of a row begins with."""
        return int(self.begins_D[self.document_of(row)])

    def characters_before(self, row: int) -> int:
        """Return the number of complete characters of the text before a row."""
        begin = int(self.plan.begin_R[row])
        if begin == self.plan.first_R[row]:
            return self.document_begin(row)
        return min(int(self.spans_N2[begin - 1, 1]), int(self.spans_N2[begin, 0]))

    def queries(self, tokenizer: Tokenizer) -> list[str]:
        """Return the query of each stride as text; empty for a stride that does not retrieve."""
        plan = self.plan
        return [
            tokenizer.decode(self.tokens[begin:end]) if retrieves else ""
            for begin, end, retrieves in zip(plan.query_begin_R, plan.query_end_R, plan.retrieves_R, strict=True)
        ]

    def token_texts(self, positions_T: IntArray) -> tuple[str, list[str]]:
        """Return the text before the first of some tokens in order, and the text that each adds to that before it."""
        text = self.text
        ends_N = np.concatenate([[0], np.maximum.accumulate(self.spans_N2[:, 1])])
        ends_T = [int(ends_N[positions_T[0]]), *ends_N[positions_T + 1].tolist()]
        return text[: ends_T[0]], [text[begin:end] for begin, end in pairwise(ends_T)]

    @property
    def document_T(self) -> IntArray:
        """The number of the document (int64) that each target is in."""
        return self.plan.documents.searchsorted(self.plan.positions_T, side="right") - 1

    @property
    def counted_texts(self) -> Sequence[str]:
        """The texts by whose words and bytes perplexities divide: of the targets, or all in the official code."""
        if self.plan.counts_first:
            return self.documents
        ends = self.spans_N2[self.plan.documents, 1] - self.begins_D
        return [document[max(0, end) :] for document, end in zip(self.documents, ends.tolist(), strict=True)]


def prepare_text(
    text: str | Sequence[str], tokenizer: Tokenizer, options: PlanOptions, *, limit_tokens: int | None = None
) -> PreparedText:
    """Tokenise and plan a text, or documents each on its own; TextError if little is known or nothing is scored."""
    tokenizer = full_tokenizer(tokenizer)
    is_rolling = options.windows == "rolling"
    documents, begins, tokens, spans, plans, shortest = [], [0], [], [], [], 1 if is_rolling else 2
    beginnings = [*_beginnings(text, tokenizer, limit_tokens)]
    for document, document_tokens, spans_N2 in beginnings:
        if len(beginnings) > 1 and len(document_tokens) < shortest:
            continue
        if is_rolling:
            document_tokens, spans_N2 = _as_in_replug(document_tokens, spans_N2, tokenizer)
        documents.append(document)
        tokens.append(document_tokens)
        spans.append(spans_N2 + begins[-1])
        plans.append(make_plan(len(document_tokens), options))
        begins.append(begins[-1] + len(document) + len(_BETWEEN))
    if not documents:
        raise TextError(f"none of {len(beginnings):,} documents has a token to score: give longer ones.")
    if left_out := len(beginnings) - len(documents):
        message = f"documents without a token to score are left out: {left_out:,}."
        warnings.warn(message, RalmWarning, stacklevel=3)
    columns = np.array(begins[:-1]), np.concatenate(tokens), np.concatenate(spans)
    prepared = PreparedText(documents, *columns, join_plans(plans))
    return replace(prepared, unknown_tokens=_count_unknown(prepared, tokenizer))


def _as_in_replug(tokens: IntArray, spans_N2: IntArray, tokenizer: FullTokenizer) -> tuple[IntArray, IntArray]:
    """Return the tokens and spans of a document with the tokens that rolling windows have around it."""
    if len(tokens) == 0:
        raise TextError("the text is empty, and there is nothing to score: give a longer text.")
    special = tokenizer.special_tokens
    before = np.append(_end_of_text(tokenizer), special.before).astype(np.int64)
    empty_before_N2 = np.zeros((len(before), 2), dtype=np.int64)
    empty_after_N2 = np.full((len(special.after), 2), spans_N2[:, 1].max(initial=0), dtype=np.int64)
    spans_N2 = np.concatenate([empty_before_N2, spans_N2, empty_after_N2])
    return np.concatenate([before, tokens, special.after]), spans_N2


def read_beginning(text: str | Sequence[str], tokenizer: Tokenizer, limit_tokens: int | None) -> Sequence[str]:
    """Return the documents, or the parts of them, that `prepare_text` reads."""
    if limit_tokens is None:
        return _documents(text)
    return [document for document, _, _ in _beginnings(text, full_tokenizer(tokenizer), limit_tokens)]


def _documents(text: str | Sequence[str]) -> Sequence[str]:
    return [text] if isinstance(text, str) else text


def _beginnings(
    text: str | Sequence[str], tokenizer: FullTokenizer, limit_tokens: int | None
) -> Iterator[tuple[str, IntArray, IntArray]]:
    """Yield the text, ids and spans of each document, until there are so many tokens."""
    room = limit_tokens
    for document in _documents(text):
        beginning, tokens, spans_N2 = _encode_beginning(document, tokenizer, room)
        yield beginning, tokens, spans_N2
        if room is not None:
            room -= len(tokens)
            if room <= 0 or len(beginning) < len(document):
                return


def _encode_beginning(text: str, tokenizer: FullTokenizer, limit_tokens: int | None) -> tuple[str, IntArray, IntArray]:
    """Return the text, ids and spans (int64, N x 2) of the first tokens, up to the last complete character."""
    tokens, spans_N2 = tokenizer.encode_with_spans(text)
    if limit_tokens is None or limit_tokens >= len(tokens):
        return text, tokens, spans_N2
    ends_N = np.maximum.accumulate(spans_N2[:, 1])
    whole = limit_tokens
    while whole > 0 and spans_N2[whole, 0] < ends_N[whole - 1]:
        whole -= 1
    return text[: int(spans_N2[:whole, 1].max(initial=0))], tokens[:whole], spans_N2[:whole]


def _end_of_text(tokenizer: FullTokenizer) -> int:
    """Return <|endoftext|> as in REPLUG's code, whatever the model, else the unknown or the end-of-text token."""
    token = tokenizer.token_of("<|endoftext|>")
    token = tokenizer.end_token if token is None else token
    if token is None:
        raise ModelError(
            '`windows="rolling"` begin with the token <|endoftext|>, the unknown token, or an end-of-text token, but '
            "the tokenizer of this model has none of them; use other windows."
        )
    return token


def _count_unknown(prepared: PreparedText, tokenizer: FullTokenizer) -> int:
    """Count the tokens that stand for text that the tokenizer does not know, and warn if it loses characters."""
    text, tokens, spans_N2 = prepared.text, prepared.tokens, prepared.spans_N2
    unknown_N = np.zeros(len(tokens), dtype=np.bool_)
    if tokenizer.unknown_token is not None:
        name = tokenizer.decode(np.array([tokenizer.unknown_token])).strip()
        for at in np.flatnonzero(tokens == tokenizer.unknown_token).tolist():
            begin, end = spans_N2[at].tolist()
            # the text itself may contain the token's name, and tokens around it have no text
            unknown_N[at] = begin < end and text[begin:end].strip() != name
    known_K2 = spans_N2[~unknown_N]
    ends = np.concatenate([[0], np.maximum.accumulate(known_K2[:, 1])]).tolist()
    begins = [*known_K2[:, 0].tolist(), len(text)]
    lost = sum(_visible(text[end:begin]) for end, begin in zip(ends, begins, strict=True) if begin > end)
    if lost:
        share = lost / _visible(text)
        message = f"{share:.1%} of the characters of the text are unknown to the tokenizer and lost"
        if share > _MAX_UNKNOWN:
            raise TextError(f"{message}: the figures would describe another text. Take a model that knows its letters.")
        warnings.warn(f"{message}: this lowers the figures", RalmWarning, stacklevel=3)
    return int(unknown_N.sum())


def _visible(text: str) -> int:
    return len("".join(text.split()))


class PassageDocuments:
    """Passages as token ids: title, newline, text, cut to `document_tokens`; each is encoded once.

    Each begins with the special tokens that `bos` selects (`first`, int64), as does a row without a passage. If `bos`
    is None, as in the official code, with those that the tokenizer adds by default, and such a row with nothing.
    """

    def __init__(self, passages: Passages, tokenizer: Tokenizer, document_tokens: int, bos: Bos | None = None) -> None:
        self.first = _NOTHING if bos is None else first_tokens(tokenizer, bos)
        self._passages = passages
        self._tokenizer = full_tokenizer(tokenizer)
        self._document_tokens = document_tokens
        self._official = bos is None
        self._encoded: dict[int, IntArray] = {NO_PASSAGE: self.first}
        self._encode_next = cache(self._tokenizer.encode)
        if len(self.first) > document_tokens:
            raise UsageError(
                f"`document_tokens` {document_tokens} leaves no room for the {len(self.first)} special tokens that "
                'come first: raise it, or give `bos="never"`.'
            )

    @classmethod
    def planned(cls, passages: Passages, tokenizer: Tokenizer, options: PlanOptions) -> Self:
        """Return the documents of a plan with these options."""
        bos = None if options.semantics == "official" else options.bos
        return cls(passages, tokenizer, options.document_tokens, bos)

    def __getitem__(self, number: int) -> IntArray:
        """Return the token ids (int64) of a passage; for `NO_PASSAGE`, those before a row without a passage."""
        if number not in self._encoded:
            self._encoded[number] = self.encode(self._passages[number].contents)
        return self._encoded[number]

    def passage(self, number: int) -> Passage:
        """Return the passage itself."""
        return self._passages[number]

    def encode(self, text: str) -> IntArray:
        """Return the token ids (int64) of a text that stands before a context."""
        if self._official:
            return self._tokenizer.encode_document(text, self._document_tokens)
        return np.concatenate([self.first, self._tokenizer.encode(text)])[: self._document_tokens]

    def encode_next(self, text: str) -> IntArray:
        """Return the token ids (int64) of a text that follows another one in a prefix, without special tokens."""
        return self._encode_next(text)[: self._document_tokens]


def first_tokens(tokenizer: Tokenizer, bos: Bos) -> IntArray:
    """Return the token ids (int64) that every reading begins with; ModelError if there is no BOS to begin with."""
    if bos == "never":
        return _NOTHING
    special = full_tokenizer(tokenizer).special_tokens
    if bos == "auto":
        return special.before
    if special.begin is None:
        raise ModelError('`bos="always"`: the tokenizer of this model has no BOS token; leave `bos` out.')
    if special.begin in special.before:
        return special.before
    return np.append(special.begin, special.before).astype(np.int64)


def without_first(tokens: IntArray, first: IntArray) -> IntArray:
    """Return the text without these special tokens if it begins with them, so that they do not come twice."""
    doubled = len(first) > 0 and np.array_equal(tokens[: len(first)], first)
    return tokens[len(first) :] if doubled else tokens

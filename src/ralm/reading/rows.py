"""The strides of a prepared text as rerankers see them: the text before each, and its log-probabilities.

Knows a plan and how its readings begin; knows nothing of how candidates are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

import numpy as np

from ralm.errors import UsageError
from ralm.lm.scoring import Scorer
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import LanguageModel, Tokenizer
from ralm.reading.in_context import rows_with_targets, stride_request
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import stride_queries
from ralm.reading.tokens import PassageDocuments, PreparedText, first_tokens
from ralm.records import NO_PASSAGE, FloatArray, Hits, IntArray, Passages, PromptPrefix, Request
from ralm.validation import MAX_COUNT

_NEEDS_A_MODEL: Final = "this reranker ranks with a language model, and here is none: choose another one."


class TextRows:
    """The strides of a text, for rerankers that need no language model."""

    def __init__(self, prepared: PreparedText, tokenizer: Tokenizer) -> None:
        self._prepared = prepared
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self._prepared.plan)

    @cached_property
    def queries(self) -> Sequence[str]:
        """The query of each stride; empty for a stride that does not retrieve."""
        return stride_queries(self._prepared, self._tokenizer)

    @property
    def strides(self) -> IntArray:
        """The numbers of the strides."""
        return np.arange(len(self), dtype=np.int64)

    def prefix(self, row: int) -> str:
        """The text before a stride."""
        return self._prepared.text[: self._prepared.characters_before(row)]

    def prefix_log_probs(  # a ranking model would do, but no command gives one
        self,
        candidates: Sequence[tuple[int, int]],  # noqa: ARG002
        tokens: int,  # noqa: ARG002
        model: LanguageModel | None = None,  # noqa: ARG002
    ) -> list[FloatArray]:
        """Raises UsageError: there is no language model here."""
        raise UsageError(_NEEDS_A_MODEL)

    def target_log_probs(self, candidates: Sequence[tuple[int, int]]) -> list[FloatArray]:  # noqa: ARG002
        """Raises UsageError: there is no language model here."""
        raise UsageError(_NEEDS_A_MODEL)


class StrideRows(TextRows):
    """The strides of a text with their hits, read by the model of `scorer` after `documents`."""

    def __init__(
        self, prepared: PreparedText, scorer: Scorer, documents: PassageDocuments, hits: Hits, passages: Passages
    ) -> None:
        super().__init__(prepared, scorer.tokenizer)
        self._scorer = scorer
        self._documents = documents
        self._hits = hits
        self._passages = passages
        self._targets: dict[tuple[int, int], FloatArray] = {}

    def prefix_log_probs(
        self, candidates: Sequence[tuple[int, int]], tokens: int, model: LanguageModel | None = None
    ) -> list[FloatArray]:
        """The log-probabilities of the end of each prefix after a passage.

        The reading model scores the targets in the same pass, so reading them later costs nothing.
        """
        if model is not None:
            return self._by_another(candidates, tokens, model)
        self._check(tokens)
        targets_R = self._prepared.plan.end_R - self._prepared.plan.target_begin_R
        scored = self._log_probs(candidates, tokens)
        return [one[: len(one) - int(targets_R[row])] for (row, _), one in zip(candidates, scored, strict=True)]

    def target_log_probs(self, candidates: Sequence[tuple[int, int]]) -> list[FloatArray]:
        """The log-probabilities of each stride's targets after a passage."""
        return self._log_probs(candidates, 0)

    def _log_probs(self, candidates: Sequence[tuple[int, int]], before: int) -> list[FloatArray]:
        """The log-probabilities of the `before` tokens before the targets and of the targets.

        Rows without a choice are scored too, since they will be read as well and share passes.
        """
        if self._scorer.traits.bound:
            raise UsageError(
                f"{self._scorer.name} gives bounds of log-probabilities, which do not rank passages: leave out "
                "`rerank`, rank by another `rerank_lm`, or use a server that tells log-probabilities of given texts."
            )
        tokens, plan = self._prepared.tokens, self._prepared.plan
        asked = {row for row, _ in candidates}
        rest = [row for row in rows_with_targets(plan) if row not in asked]
        others = [(row, number) for row in rest for number, _ in self._hits.of(row)[:1] or [(NO_PASSAGE, 0.0)]]
        pairs = [*candidates, *others]
        in_order = sorted(range(len(pairs)), key=lambda place: pairs[place][0])  # neighbours share passes
        requests = [
            stride_request(tokens, plan, row, self._documents[number], before)
            for row, number in (pairs[place] for place in in_order)
        ]
        scored = dict(zip(in_order, self._scorer.log_probs(requests), strict=True))
        for place, (row, number) in enumerate(pairs):
            targets = int(plan.end_R[row] - plan.target_begin_R[row])
            self._targets[row, number] = scored[place][len(scored[place]) - targets :]
        return [scored[place] for place in range(len(candidates))]

    def ranked(self, row: int, prompt_prefix: PromptPrefix) -> FloatArray | None:
        """The log-probabilities of a row's targets after a prompt prefix, if ranking has scored them; else None."""
        found = self._targets.get((row, prompt_prefix.passage))
        return found if prompt_prefix.tokens is self._documents[prompt_prefix.passage] else None

    def _by_another(self, candidates: Sequence[tuple[int, int]], tokens: int, model: LanguageModel) -> list[FloatArray]:
        """The same by another model, with its own tokenizer (Table 3)."""
        options = self._prepared.plan.options
        max_length = min(options.max_length, model.max_length)
        check_rank_tokens(options.document_tokens, tokens, options.advance, max_length)
        text = RankedText.of(self._prepared.text, model.tokenizer, max_length, options.advance)
        documents = PassageDocuments.planned(self._passages, model.tokenizer, options)
        ends = {row: text.tokens_within(self._prepared.characters_before(row)) for row, _ in candidates}
        return scored(model, [text.request(ends[row], documents[number], tokens) for row, number in candidates])

    def _check(self, tokens: int) -> None:
        """Raise UsageError if the reading model cannot read a document and `tokens` tokens before the targets."""
        options = self._prepared.plan.options
        if options.windows != "rolling":
            check_rank_tokens(options.document_tokens, tokens, options.advance, options.max_length)
        elif tokens > options.query_tokens:
            raise UsageError(
                f"`RerankOptions.tokens` {tokens} are more than the `query_tokens` {options.query_tokens} that rolling "
                "windows have before their targets: lower it."
            )


def scored(model: LanguageModel, requests: Sequence[Request | None]) -> list[FloatArray]:
    """The log-probabilities of each request; an empty array where there is none."""
    answers = iter(Scorer.of(model).log_probs([request for request in requests if request is not None]))
    return [np.zeros(0, dtype=np.float32) if request is None else next(answers) for request in requests]


def check_rank_tokens(document_tokens: int, rank_tokens: int, advance: int, max_length: int) -> None:
    """Raise UsageError if a model cannot read a document, the tokens to rank by, and the `advance` after them."""
    if document_tokens + rank_tokens + advance >= max_length:
        beside = f" beside the {advance} that the window advances at a time" if advance else ""
        raise UsageError(
            f"`document_tokens` {document_tokens} and `RerankOptions.tokens` {rank_tokens} do not fit together into "
            f"{max_length} tokens{beside}: lower one of them."
        )


@dataclass(frozen=True, slots=True, eq=False)
class RankedText:
    """A text in a ranking model's tokens (int64, N), with the character at which each ends (int64, N).

    The model reads at most `max_length` tokens; the beginning of its window advances `advance` tokens at a time.
    """

    tokens: IntArray
    ends_N: IntArray
    max_length: int
    advance: int

    @classmethod
    def of(cls, text: str, tokenizer: Tokenizer, max_length: int, advance: int) -> Self:
        """Tokenise a text."""
        tokens, spans_N2 = full_tokenizer(tokenizer).encode_with_spans(text)
        return cls(tokens, np.maximum.accumulate(spans_N2[:, 1]), max_length, advance)

    def tokens_within(self, characters: int) -> int:
        """How many tokens lie completely within the first `characters` characters."""
        return int(np.searchsorted(self.ends_N, characters, side="right"))

    def request(self, end: int, document: IntArray, rank_tokens: int) -> Request | None:
        """Score the last `rank_tokens` of the first `end` tokens behind a document; None if there is nothing to score.

        The first token of the text is never a target: without a document there is nothing before it.
        """
        if end < 2:
            return None
        block_end = -(-end // self.advance) * self.advance
        begin = max(end - rank_tokens, 1)
        context_begin = max(0, block_end + len(document) - self.max_length)
        return Request(document=document, context=self.tokens[context_begin:begin], targets=self.tokens[begin:end])


class PromptState:
    """A growing text, the query that replaces it for the retriever (or None), and its current prompt prefixes.

    The prompt prefixes stay as they are until `prefixes_end` tokens are written.
    """

    def __init__(self, text: IntArray, query: str | None, prompt_prefixes: Sequence[PromptPrefix]) -> None:
        self.text = text
        self.query = query
        self.prompt_prefixes = prompt_prefixes
        self.prefixes_end = MAX_COUNT
        self.written = 0

    def append(self, token: int) -> None:
        """Append a generated token."""
        self.text = np.append(self.text, token)
        self.written += 1


class PromptRows:
    """Some prompts at the beginning of a stride."""

    def __init__(
        self,
        prompts: Sequence[PromptState],
        queries: Sequence[str],
        model: LanguageModel,
        documents: PassageDocuments,
        passages: Passages,
        options: GenerationOptions,
    ) -> None:
        self.queries = queries
        self._prompts = prompts
        self._model = model
        self._documents = documents
        self._passages = passages
        self._options = options

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def strides(self) -> IntArray:
        """The stride of each prompt, from 0: how many times passages were chosen for it before."""
        return np.array([prompt.written // self._options.stride for prompt in self._prompts], dtype=np.int64)

    def prefix(self, row: int) -> str:
        """The text of a prompt so far."""
        return self._model.tokenizer.decode(self._prompts[row].text)

    def prefix_log_probs(
        self, candidates: Sequence[tuple[int, int]], tokens: int, model: LanguageModel | None = None
    ) -> list[FloatArray]:
        """The log-probabilities of the end of each text after a passage."""
        if model is not None:
            return self._by_another(candidates, tokens, model)
        length = self._length(self._model, tokens)
        return scored(
            Scorer(self._model, progress=False),
            [self._request(row, number, tokens, length) for row, number in candidates],
        )

    def target_log_probs(self, candidates: Sequence[tuple[int, int]]) -> list[FloatArray]:  # noqa: ARG002
        """Raises UsageError: the targets are not generated yet."""
        raise UsageError(
            "this reranker looks at the text to be predicted, which generation does not have: choose another one."
        )

    def _request(self, row: int, number: int, tokens: int, length: int) -> Request | None:
        """The request for a text after a passage; None for a text of one token, which has no token before its
        target."""
        text, document = self._prompts[row].text, self._documents[number]
        begin = max(len(text) - tokens, 1)
        if begin >= len(text):
            return None
        context_begin = max(0, len(document) + len(text) - length)
        return Request(document=document, context=text[context_begin:begin], targets=text[begin:])

    def _by_another(self, candidates: Sequence[tuple[int, int]], tokens: int, model: LanguageModel) -> list[FloatArray]:
        """The same by another model, with its own tokenizer."""
        first = first_tokens(model.tokenizer, self._options.bos)
        documents = PassageDocuments(self._passages, model.tokenizer, self._options.document_tokens, first)
        length = self._length(model, tokens)
        texts = {row: RankedText.of(self.prefix(row), model.tokenizer, length, 1) for row, _ in candidates}
        return scored(
            Scorer(model, progress=False),
            [texts[row].request(len(texts[row].tokens), documents[number], tokens) for row, number in candidates],
        )

    def _length(self, model: LanguageModel, tokens: int) -> int:
        """The most tokens that a ranking model reads; UsageError if a document and `tokens` tokens do not fit."""
        length = min(self._options.max_length or model.max_length, model.max_length)
        check_rank_tokens(self._options.document_tokens, tokens, 0, length)
        return length

"""Contexts of the harness as token ids, with the prompt prefixes that retrieval puts before them.

Text becomes tokens as in the harness's `hf`, so that the same tokens are scored. Knows requests (their texts, and the
task's document); knows nothing of models.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from ralm.errors import RalmWarning, TextError, UsageError
from ralm.harness.queries import holds, question_of
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import Reader, Tokenizer
from ralm.reading.plan import PlanOptions
from ralm.reading.score import Ending, prompt_prefixes_of
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import PassageDocuments, first_tokens, without_first
from ralm.records import IntArray, PromptPrefix
from ralm.validation import retrieve_checked

_NOTHING: Final[IntArray] = np.zeros(0, dtype=np.int64)


class HarnessRequest(Protocol):
    """What is read of a request (`lm_eval.api.instance.Instance`): its texts, and the task's document."""

    doc: Any

    @property
    def args(self) -> tuple[Any, ...]:
        """The context, and the ending or how to generate."""


class Contexts:
    """Puts requests into token ids, and passages in front of them; without a `source`, nothing.

    `question_field` is the field of a document that holds the question; None is the usual names.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        plan: PlanOptions,
        source: FromRetriever | None,
        reader: Reader,
        question_field: str | None = None,
    ) -> None:
        self._tokenizer = full_tokenizer(tokenizer)
        self._plan = plan
        self._source = source
        self._reader = reader
        self._question_field = question_field
        special = self._tokenizer.special_tokens
        self._around = (special.before, special.after)
        self.prefix = self._tokenizer.end_token if special.begin is None else special.begin
        self._first = _NOTHING if source is None else first_tokens(tokenizer, plan.bos)
        passages = () if source is None else source.passages
        self._documents = PassageDocuments(passages, tokenizer, plan.document_tokens, self._first)

    def encode(self, text: str) -> IntArray:
        """The token ids (int64) of a text with the special tokens around it, unless it begins with them."""
        tokens = self._tokenizer.encode(text)
        begins = self.prefix is not None and text.startswith(self._tokenizer.decode(np.array([self.prefix])))
        return tokens if begins else np.concatenate([self._around[0], tokens, self._around[1]])

    def prompt(self, request: HarnessRequest, room: int) -> IntArray:
        """The token ids (int64) of the context of a request, whose oldest are dropped to leave room for `room` more.

        An empty context is the BOS, else the end-of-text token.
        """
        tokens = self.encode(request.args[0])[-(self._plan.max_length - room) :]
        return tokens if len(tokens) or self.prefix is None else np.array([self.prefix], dtype=np.int64)

    def question(self, request: HarnessRequest, *, cached: bool) -> str | None:
        """The question that the retriever is asked with; None if the document has none, or nothing is retrieved.

        Raises UsageError if answers are `cached` by the text of the prompt and the question is not in it: the cache
        could not tell two questions apart.
        """
        if self._source is None:
            return None
        question = question_of(request.doc, self._question_field)
        if cached and question is not None and not holds(str(request.args[0]), question):
            raise UsageError(
                f"`use_cache` finds answers by the prompt, and a prompt does not hold its question "
                f"({question[:60]!r}), which decides the passages: leave it out for this task."
            )
        return question

    def endings(self, requests: Sequence[HarnessRequest], *, cached: bool) -> list[Ending]:
        """The contexts and endings of requests, with passages in front.

        Warns (RalmWarning) if contexts are too long and lose their oldest tokens. Raises UsageError if an ending and
        the passages do not fit into the model, TextError if an ending has no tokens.
        """
        texts = [self._split(*request.args) for request in requests]
        contexts = [without_first(context, self._first) for context, _ in texts]
        questions = [self.question(request, cached=cached) for request in requests]
        queries = [
            self._tokenizer.decode(context[-self._plan.query_tokens :]) if question is None else question
            for context, question in zip(contexts, questions, strict=True)
        ]
        prompt_prefixes = self._fronts(queries)
        endings = [
            Ending.after(prompt_prefixes[query], context, targets, self._plan.max_length, self.prefix)
            for query, context, (_, targets) in zip(queries, contexts, texts, strict=True)
        ]
        if cut := sum(one.dropped > 0 for one in endings):
            warnings.warn(
                f"{cut:,} of {len(endings):,} contexts are too long for the {self._plan.max_length} tokens that the "
                "model reads, and lose their oldest tokens",
                RalmWarning,
                stacklevel=3,
            )
        return endings

    def _fronts(self, queries: Sequence[str]) -> Mapping[str, Sequence[PromptPrefix]]:
        """What stands in front for each query; for none, the prompt prefix without a passage."""
        without = prompt_prefixes_of(self._reader, [], self._documents)
        if self._source is None:
            return dict.fromkeys(queries, without)
        asked = [query for query in dict.fromkeys(queries) if query.strip()]
        hits = (
            retrieve_checked(self._source.retriever, asked, self._reader.hits, len(self._source.passages))
            if asked
            else None
        )
        prompt_prefixes = dict.fromkeys(queries, without)
        for row, query in enumerate(asked):
            assert hits is not None
            prompt_prefixes[query] = prompt_prefixes_of(self._reader, hits.of(row), self._documents)
        return prompt_prefixes

    def _split(self, context: str, ending: str) -> tuple[IntArray, IntArray]:
        """The tokens of a context and of its ending, encoded as one text: spaces between them belong to the ending.

        A text without a context begins with nothing, unless its first token is the one that would stand before it.
        """
        if context:
            before = self.encode(context.rstrip())
            targets = self.encode(context + ending)[len(before) :]
        else:
            targets = self._tokenizer.encode(ending)
            begins = len(targets) > 0 and targets[0] == self.prefix
            before, targets = (targets[:1], targets[1:]) if begins else (_NOTHING, targets)
        if len(targets) == 0:
            raise TextError(f"the ending {ending!r} of a context has no tokens of its own, so it has no probability.")
        return before, targets

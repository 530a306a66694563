"""Unfinished prompts as rerankers see them.

Knows texts as token ids and what is in front of them; knows nothing of how tokens are drawn.
"""

from collections.abc import Sequence

import numpy as np

from ralm.bounds import MOST
from ralm.errors import UsageError
from ralm.lm.scoring import Scorer
from ralm.pipeline.options import GenerationOptions
from ralm.pipeline.ranked_text import RankedText
from ralm.pipeline.rows import check_rank_tokens, scored
from ralm.protocols import LanguageModel
from ralm.reading.beginning import first_tokens
from ralm.reading.documents import PassageDocuments
from ralm.records import FloatArray, Front, IntArray, Passages, Request


class PromptState:
    """A growing text, the query that replaces it for the retriever (or None), and its current fronts.

    The fronts stay as they are until `fronts_end` tokens are written.
    """

    def __init__(self, text: IntArray, query: str | None, fronts: Sequence[Front]) -> None:
        self.text = text
        self.query = query
        self.fronts = fronts
        self.fronts_end = MOST
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

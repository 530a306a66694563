"""Prompts that are being written on, as rerankers see them.

Knows texts as token ids and what stands in front of them; knows nothing of how tokens are drawn.
"""

from collections.abc import Sequence

import numpy as np

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
    """A text that is being written, what its retriever is asked if not the text, and what stands in front of it now."""

    def __init__(self, text: IntArray, query: str | None, fronts: Sequence[Front]) -> None:
        self.text = text
        self.query = query
        self.fronts = fronts
        self.written = 0

    def append(self, token: int) -> None:
        """Add a token that was written."""
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
        """The stride of each prompt: how often passages were chosen for it before."""
        return np.array([prompt.written // self._options.stride for prompt in self._prompts], dtype=np.int64)

    def prefix(self, row: int) -> str:
        """The text of a prompt as far as it is written."""
        return self._model.tokenizer.decode(self._prompts[row].text)

    def prefix_log_probs(
        self, candidates: Sequence[tuple[int, int]], tokens: int, model: LanguageModel | None = None
    ) -> list[FloatArray]:
        """The log-probabilities of the end of each text behind a passage."""
        if model is not None:
            return self._by_another(candidates, tokens, model)
        length = self._length(self._model, tokens)
        return scored(
            Scorer(self._model, progress=False),
            [self._request(row, number, tokens, length) for row, number in candidates],
        )

    def target_log_probs(self, candidates: Sequence[tuple[int, int]]) -> list[FloatArray]:  # noqa: ARG002
        """Raises UsageError: nobody knows what will be written."""
        raise UsageError(
            "this reranker looks at the text to be predicted, which generation does not have: choose another one."
        )

    def _request(self, row: int, number: int, tokens: int, length: int) -> Request | None:
        """None for a text of one token, which has nothing before it without a passage."""
        text, document = self._prompts[row].text, self._documents[number]
        begin = max(len(text) - tokens, 1)
        if begin >= len(text):
            return None
        context_begin = max(0, len(document) + len(text) - length)
        return Request(document=document, context=text[context_begin:begin], targets=text[begin:])

    def _by_another(self, candidates: Sequence[tuple[int, int]], tokens: int, model: LanguageModel) -> list[FloatArray]:
        """By a model that cuts the texts into tokens of its own."""
        first = first_tokens(model.tokenizer, self._options.bos)
        documents = PassageDocuments(self._passages, model.tokenizer, self._options.document_tokens, first)
        length = self._length(model, tokens)
        texts = {row: RankedText.of(self.prefix(row), model.tokenizer, length, 1) for row, _ in candidates}
        return scored(
            Scorer(model, progress=False),
            [texts[row].request(len(texts[row].tokens), documents[number], tokens) for row, number in candidates],
        )

    def _length(self, model: LanguageModel, tokens: int) -> int:
        """The most tokens that a model ranks by; UsageError if a document and so many tokens do not fit."""
        length = min(self._options.max_length or model.max_length, model.max_length)
        check_rank_tokens(self._options.document_tokens, tokens, 0, length)
        return length

"""What a reranker sees (`ralm.protocols.Rows`): the strides of a text, or unfinished prompts, and log-probabilities."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ralm.errors import UsageError
from ralm.lm.scoring import Scorer
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import LanguageModel, Tokenizer
from ralm.reading.in_context import rows_with_targets, stride_request
from ralm.reading.sampling import GenerationOptions
from ralm.reading.tokens import PassageDocuments, PreparedText
from ralm.records import NO_PASSAGE, FloatArray, Hits, IntArray, Passages, PromptPrefix, Request
from ralm.validation import MAX_COUNT


class StrideRows:
    """The strides of a text with their hits, read by the model of `scorer`.

    Without a `scorer` they are for rerankers that need no language model; the others raise UsageError.
    """

    def __init__(
        self,
        prepared: PreparedText,
        tokenizer: Tokenizer,
        hits: Hits,
        passages: Passages = (),
        scorer: Scorer | None = None,
    ) -> None:
        self.documents = PassageDocuments.planned(passages, tokenizer, prepared.plan.options)
        self._prepared = prepared
        self._tokenizer = tokenizer
        self._hits = hits
        self._passages = passages
        self._model = scorer
        self._targets: dict[tuple[int, int], FloatArray] = {}

    def __len__(self) -> int:
        return len(self._prepared.plan)

    @cached_property
    def queries(self) -> Sequence[str]:
        """The query of each stride; empty for a stride that does not retrieve."""
        return self._prepared.queries(self._tokenizer)

    @property
    def strides(self) -> IntArray:
        """The numbers of the strides."""
        return np.arange(len(self), dtype=np.int64)

    def prefix(self, row: int) -> str:
        """The text before a stride."""
        return self._prepared.text[: self._prepared.characters_before(row)]

    def prefix_log_probs(
        self, candidates: Sequence[tuple[int, int]], tokens: int, model: LanguageModel | None = None
    ) -> list[FloatArray]:
        """The log-probabilities of the end of each prefix after a passage.

        The reading model scores the targets in the same sequence, so reading them later costs nothing.
        """
        scorer = self._scorer()
        if model is not None:
            return self._by_another(candidates, tokens, model)
        self._check(tokens)
        targets_R = self._prepared.plan.end_R - self._prepared.plan.target_begin_R
        scored = self._log_probs(scorer, candidates, tokens)
        return [one[: len(one) - int(targets_R[row])] for (row, _), one in zip(candidates, scored, strict=True)]

    def target_log_probs(self, candidates: Sequence[tuple[int, int]]) -> list[FloatArray]:
        """The log-probabilities of each stride's targets after a passage."""
        return self._log_probs(self._scorer(), candidates, 0)

    def ranked(self, row: int, prompt_prefix: PromptPrefix) -> FloatArray | None:
        """The log-probabilities of a row's targets after a prompt prefix, if ranking has scored them; else None."""
        found = self._targets.get((row, prompt_prefix.passage))
        return found if prompt_prefix.tokens is self.documents[prompt_prefix.passage] else None

    def _scorer(self) -> Scorer:
        if self._model is None:
            raise UsageError("this reranker needs a language model, and there is none here: choose another one.")
        return self._model

    def _log_probs(self, scorer: Scorer, candidates: Sequence[tuple[int, int]], before: int) -> list[FloatArray]:
        """The log-probabilities of the `before` tokens before the targets and of the targets.

        Rows without a choice are scored too, since they will be read as well and share sequences.
        """
        if scorer.traits.bound:
            raise UsageError(
                f"{scorer.name} gives bounds of log-probabilities, which do not rank passages: leave out `rerank`, "
                "rank by another `rerank_lm`, or use a server that returns log-probabilities of given texts."
            )
        tokens, plan = self._prepared.tokens, self._prepared.plan
        contested = {row for row, _ in candidates}
        rest = [row for row in rows_with_targets(plan) if row not in contested]
        others = [(row, number) for row in rest for number, _ in self._hits.of(row)[:1] or [(NO_PASSAGE, 0.0)]]
        pairs = [*candidates, *others]
        in_order = sorted(range(len(pairs)), key=lambda place: pairs[place][0])  # neighbours share sequences
        requests = [
            stride_request(tokens, plan, row, self.documents[number], before)
            for row, number in (pairs[place] for place in in_order)
        ]
        scored = dict(zip(in_order, scorer.log_probs(requests), strict=True))
        for place, (row, number) in enumerate(pairs):
            targets = int(plan.end_R[row] - plan.target_begin_R[row])
            self._targets[row, number] = scored[place][len(scored[place]) - targets :]
        return [scored[place] for place in range(len(candidates))]

    def _by_another(self, candidates: Sequence[tuple[int, int]], count: int, model: LanguageModel) -> list[FloatArray]:
        """The same by another model with its own tokenizer (In-Context RALM, Table 3).

        The whole text is tokenised once, so that the requests of neighbouring rows are prefixes of each other and share
        sequences. The prefix of a row is all tokens that lie within its characters.
        """
        options = self._prepared.plan.options
        max_length = min(options.max_length, model.max_length)
        _check_rank_tokens(options.document_tokens, count, options.advance, max_length)
        tokens, spans_N2 = full_tokenizer(model.tokenizer).encode_with_spans(self._prepared.text)
        ends_N = np.maximum.accumulate(spans_N2[:, 1])
        rows = {row for row, _ in candidates}
        end_of = {row: ends_N.searchsorted(self._prepared.characters_before(row), side="right") for row in rows}
        documents = PassageDocuments.planned(self._passages, model.tokenizer, options)
        return _scored(
            Scorer.of(model),
            [
                _rank_request(tokens, int(end_of[row]), documents[number], count, max_length, options.advance)
                for row, number in candidates
            ],
        )

    def _check(self, tokens: int) -> None:
        """Raise UsageError if the reading model cannot read a document and `tokens` tokens before the targets."""
        options = self._prepared.plan.options
        if options.windows != "rolling":
            _check_rank_tokens(options.document_tokens, tokens, options.advance, options.max_length)
        elif tokens > options.query_tokens:
            raise UsageError(
                f"`RerankOptions.tokens` {tokens} are more than the `query_tokens` {options.query_tokens} that rolling "
                "windows have before their targets: lower it."
            )


class PromptState:
    """A growing text, the query that replaces it for the retriever (or None), and its current prompt prefixes.

    The prompt prefixes stay as they are until `prefixes_end` tokens are written. `generator` is that of its random
    draws.
    """

    def __init__(
        self,
        text: IntArray,
        query: str | None,
        prompt_prefixes: Sequence[PromptPrefix],
        generator: np.random.Generator | None = None,
    ) -> None:
        self.text = text
        self.query = query
        self.prompt_prefixes = prompt_prefixes
        self.generator = generator
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
        options, ranking = self._options, model or self._model
        max_length = min(options.max_length or ranking.max_length, ranking.max_length)
        _check_rank_tokens(options.document_tokens, tokens, 0, max_length)
        documents, rows = self._documents, {row for row, _ in candidates}
        if model is None:
            texts = {row: self._prompts[row].text for row in rows}
        else:
            documents = PassageDocuments(self._passages, model.tokenizer, options.document_tokens, options.bos)
            texts = {row: model.tokenizer.encode(self.prefix(row)) for row in rows}
        return _scored(
            Scorer(ranking, progress=False),
            [
                _rank_request(texts[row], len(texts[row]), documents[number], tokens, max_length)
                for row, number in candidates
            ],
        )

    def target_log_probs(self, candidates: Sequence[tuple[int, int]]) -> list[FloatArray]:  # noqa: ARG002
        """Raises UsageError: the targets are not generated yet."""
        raise UsageError(
            "this reranker looks at the text to be predicted, which generation does not have: choose another one."
        )


def _rank_request(
    tokens: IntArray, end: int, document: IntArray, count: int, max_length: int, advance: int = 1
) -> Request | None:
    """The request that scores the last `count` of the first `end` tokens of a text after a document.

    The model reads at most `max_length` tokens; the beginning of its window advances `advance` tokens at a time. None
    if there is nothing to score: the first token is never a target, since without a document there is nothing before
    it.
    """
    if end < 2:
        return None
    block_end = -(-end // advance) * advance
    begin = max(end - count, 1)
    context_begin = max(0, block_end + len(document) - max_length)
    return Request(document=document, context=tokens[context_begin:begin], targets=tokens[begin:end])


def _scored(scorer: Scorer, requests: Sequence[Request | None]) -> list[FloatArray]:
    """The log-probabilities of each request; an empty array where there is none."""
    answers = iter(scorer.log_probs([request for request in requests if request is not None]))
    return [np.zeros(0, dtype=np.float32) if request is None else next(answers) for request in requests]


def _check_rank_tokens(document_tokens: int, rank_tokens: int, advance: int, max_length: int) -> None:
    """Raise UsageError if a model cannot read a document, the tokens to rank by, and the `advance` after them."""
    if document_tokens + rank_tokens + advance >= max_length:
        beside = f" beside the {advance} that the window advances at a time" if advance else ""
        raise UsageError(
            f"`document_tokens` {document_tokens} and `RerankOptions.tokens` {rank_tokens} do not fit together into "
            f"{max_length} tokens{beside}: lower one of them."
        )

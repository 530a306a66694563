"""What a reranker sees (`ralm.protocols.Rows`): the strides of a text, or unfinished prompts, and log-probabilities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ralm.errors import UsageError
from ralm.lm.scoring import Scorer
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import LanguageModel, Tokenizer
from ralm.reading import sampling
from ralm.reading.parts import Evidence
from ralm.reading.plan import check_plan_before, check_tokens_before, rows_with_targets, stride_request
from ralm.reading.tokens import PassageDocuments, PreparedText
from ralm.records import NO_PASSAGE, FloatArray, Hits, IntArray, Passages, PromptPrefix, Readings, Request
from ralm.validation import MAX_COUNT


@dataclass(eq=False)
class StrideRows:
    """The strides of a text with their hits."""

    prepared: PreparedText
    tokenizer: Tokenizer
    hits: Hits
    passages: Passages
    scorer: Scorer

    def __post_init__(self) -> None:
        self.documents = PassageDocuments.planned(self.passages, self.tokenizer, self.prepared.plan.options)
        self._targets: dict[tuple[int, int], FloatArray] = {}

    def __len__(self) -> int:
        return len(self.prepared.plan)

    @cached_property
    def queries(self) -> Sequence[str]:
        """The query of each stride; empty for a stride that does not retrieve."""
        return self.prepared.queries(self.tokenizer)

    @property
    def strides(self) -> IntArray:
        """The numbers of the strides."""
        return np.arange(len(self), dtype=np.int64)

    def prefix(self, row: int) -> str:
        """Return the text before a stride."""
        return self.prepared.text[self.prepared.document_begin(row) : self.prepared.characters_before(row)]

    def prefix_log_probs(
        self, candidates: Sequence[tuple[int, int]], tokens: int, model: LanguageModel | None = None
    ) -> list[FloatArray]:
        """Return those of the end of each prefix after a passage; the reading model scores the targets too."""
        scorer, plan = self.scorer, self.prepared.plan
        if model is not None and (not _share_tokens(scorer, model) or plan.options.max_length > model.max_length):
            return self._by_another(candidates, tokens, model)
        check_plan_before(plan.options, tokens)
        targets_R = plan.end_R - plan.target_begin_R
        if model is None:
            scored = self._log_probs(candidates, tokens)
        else:
            scored = Scorer.of(model).log_probs(self._requests(candidates, tokens))
        return [
            log_probs[: len(log_probs) - int(targets_R[row])]
            for (row, _), log_probs in zip(candidates, scored, strict=True)
        ]

    def target_log_probs(self, candidates: Sequence[tuple[int, int]]) -> list[FloatArray]:
        """Return the log-probabilities of each stride's targets after a passage."""
        return self._log_probs(candidates, 0)

    def ranked(self, row: int, prompt_prefix: PromptPrefix) -> FloatArray | None:
        """Return the log-probabilities of a row's targets after a prompt prefix, if ranking has scored them."""
        log_probs_T = self._targets.get((row, prompt_prefix.passage))
        return log_probs_T if prompt_prefix.tokens is self.documents[prompt_prefix.passage] else None

    def _log_probs(self, candidates: Sequence[tuple[int, int]], before: int) -> list[FloatArray]:
        """Return those of the `before` tokens before the targets and of the targets; read rows without a choice too."""
        plan = self.prepared.plan
        contested = {row for row, _ in candidates}
        rest = [row for row in rows_with_targets(plan) if row not in contested]
        uncontested = [(row, number) for row in rest for number, _ in self.hits.of(row)[:1] or [(NO_PASSAGE, 0.0)]]
        pairs = sorted([*candidates, *uncontested], key=lambda pair: pair[0])  # neighbours share sequences
        scored = dict(zip(pairs, self.scorer.log_probs(self._requests(pairs, before)), strict=True))
        for (row, number), log_probs in scored.items():
            targets = int(plan.end_R[row] - plan.target_begin_R[row])
            self._targets[row, number] = log_probs[len(log_probs) - targets :]
        return [scored[pair] for pair in candidates]

    def _requests(self, pairs: Sequence[tuple[int, int]], before: int) -> list[Request]:
        tokens, plan = self.prepared.tokens, self.prepared.plan
        return [stride_request(tokens, plan, row, self.documents[number], before) for row, number in pairs]

    def _by_another(self, candidates: Sequence[tuple[int, int]], count: int, model: LanguageModel) -> list[FloatArray]:
        """Return those of another model in its own tokens of the whole text and windows (In-Context RALM, Table 3)."""
        options = self.prepared.plan.options
        max_length = min(options.max_length, model.max_length)
        check_tokens_before(options.document_tokens, count, options.advance, max_length)
        encoded = [full_tokenizer(model.tokenizer).encode_with_spans(text) for text in self.prepared.documents]
        texts = {}
        for row in {row for row, _ in candidates}:
            tokens, spans_N2 = encoded[self.prepared.document_of(row)]
            ends_N = np.maximum.accumulate(spans_N2[:, 1])
            before = self.prepared.characters_before(row) - self.prepared.document_begin(row)
            texts[row] = tokens[: ends_N.searchsorted(before, side="right")]
        documents = PassageDocuments.planned(self.passages, model.tokenizer, options)
        return _end_log_probs(Scorer.of(model), candidates, texts, documents, count, max_length, options.advance)


@dataclass(slots=True, eq=False)
class PromptState:
    """A growing text, the query that replaces it for the retriever (or None), and its readings for the next tokens."""

    text: IntArray
    query: str | None
    readings: Readings
    generator: np.random.Generator | None = None
    readings_end: int = MAX_COUNT
    written: int = 0
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PromptRows:
    """Some prompts at the beginning of a stride."""

    prompts: Sequence[PromptState]
    queries: Sequence[str]
    model: LanguageModel
    documents: PassageDocuments
    passages: Passages
    options: sampling.GenerationOptions

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def strides(self) -> IntArray:
        """The stride of each prompt, from 0: how many times passages were chosen for it before."""
        return np.array([prompt.written // self.options.stride for prompt in self.prompts], dtype=np.int64)

    def prefix(self, row: int) -> str:
        """Return the text of a prompt so far."""
        return self.model.tokenizer.decode(self.prompts[row].text)

    def prefix_log_probs(
        self, candidates: Sequence[tuple[int, int]], tokens: int, model: LanguageModel | None = None
    ) -> list[FloatArray]:
        """Return the log-probabilities of the end of each text after a passage."""
        options, ranking = self.options, model or self.model
        max_length = min(options.max_length or ranking.max_length, ranking.max_length)
        check_tokens_before(options.document_tokens, tokens, 0, max_length)
        documents, rows = self.documents, {row for row, _ in candidates}
        if model is None or _share_tokens(self.model, model):
            texts = {row: self.prompts[row].text for row in rows}
        else:
            documents = PassageDocuments(self.passages, model.tokenizer, options.document_tokens, options.bos)
            texts = {row: model.tokenizer.encode(self.prefix(row)) for row in rows}
        return _end_log_probs(Scorer(ranking, progress=False), candidates, texts, documents, tokens, max_length)

    def target_log_probs(self, candidates: Sequence[tuple[int, int]]) -> list[FloatArray]:  # noqa: ARG002
        """Raise UsageError: the targets are not generated yet."""
        raise UsageError(
            "this reranker looks at the text to be predicted, which generation does not have: choose another one."
        )


def _share_tokens(model: LanguageModel, other: LanguageModel) -> bool:
    """Return whether two models have the same tokenizer: one object, or equal fingerprints in their `config`."""
    fingerprint = model.config.get("tokenizer")
    same = fingerprint is not None and fingerprint == other.config.get("tokenizer")
    return same or model.tokenizer is other.tokenizer


def _end_log_probs(
    scorer: Scorer,
    candidates: Sequence[tuple[int, int]],
    texts: Mapping[int, IntArray],
    documents: PassageDocuments,
    count: int,
    max_length: int,
    advance: int = 1,
) -> list[FloatArray]:
    """Return those of the last `count` tokens of each row, in windows that advance `advance` tokens at a time."""
    requests = {}
    for row, number in candidates:
        tokens, document = texts[row], documents[number]
        if len(tokens) > 1:
            begin, block_end = max(len(tokens) - count, 1), -(-len(tokens) // advance) * advance
            context_begin = max(0, block_end + len(document) - max_length)
            requests[row, number] = Request(document, tokens[context_begin:begin], tokens[begin:])
    log_probs = dict(zip(requests, scorer.log_probs([*requests.values()]), strict=True))
    return [log_probs.get(pair, np.zeros(0, dtype=np.float32)) for pair in candidates]

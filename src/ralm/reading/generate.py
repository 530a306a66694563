"""Generation: every s tokens retrieve, rerank and choose prompt prefixes; then continue the text token by token.

Each step draws one token from the mixture of the predictions after all prompt prefixes (`ralm.reading.sampling`). With
one prompt prefix this is In-Context RALM, without passages the plain model. `TokenWriter` retrieves, and `Decoder`
reads and draws.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ralm.errors import UsageError
from ralm.lm.scoring import Scorer, SharedCache
from ralm.protocols import WritingModel, traits_of
from ralm.reading.parts import IN_CONTEXT, Evidence, Parts
from ralm.reading.pieces import GeneratedText, GeneratedToken, StoppedText
from ralm.reading.plan import PlanOptions
from ralm.reading.rows import PromptRows, PromptState
from ralm.reading.sampling import GenerationOptions, draw_tokens
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import PassageDocuments, without_first
from ralm.records import Draw, Drawn, FloatArray, IntArray, Request, TextsAhead
from ralm.validation import check_length, check_strings


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue, and the query of the retriever; by default the last tokens of the growing text."""

    text: str
    query: str | None = None


def generate(
    prompt: str | Prompt,
    model: WritingModel,
    options: GenerationOptions | None = None,
    source: FromRetriever | None = None,
    parts: Parts = IN_CONTEXT,
) -> Iterator[GeneratedText]:
    """Continue a prompt, token by token.

    Args:
        prompt: The text to continue, at least one token long.
        model: The model that writes.
        options: Lengths, draws and stop strings.
        source: Where passages come from; without it none is read.
        parts: How passages are read; by default the best one alone.

    Returns:
        Pieces of the text, each as soon as it cannot belong to a stop string.

    Raises:
        UsageError: The prompt is empty, lengths do not fit into the model, or the reranker looks at the text to be
            predicted.
    """
    return (piece for _, piece in generate_many([prompt], model, options, source, parts))


def generate_many(
    prompts: Sequence[str | Prompt],
    model: WritingModel,
    options: GenerationOptions | None = None,
    source: FromRetriever | None = None,
    parts: Parts = IN_CONTEXT,
) -> Iterator[tuple[int, GeneratedText]]:
    """Continue prompts together, each as if it were alone; arguments and faults as for `generate`.

    Returns:
        The number of a prompt and its next piece, in the order in which they are written.
    """
    check_strings("prompts", prompts)
    options = options or GenerationOptions()
    asked = [prompt if isinstance(prompt, Prompt) else Prompt(prompt) for prompt in prompts]
    tokens = [model.tokenizer.encode(prompt.text) for prompt in asked]
    for number, text in enumerate(tokens):
        if len(text) == 0:
            which = "the prompt" if len(prompts) == 1 else f"prompt {number + 1} of {len(prompts)}"
            raise UsageError(f"{which} is empty: give at least one word to continue.")
    writer = TokenWriter(model, options, source, parts)
    for text, prompt in zip(tokens, asked, strict=True):
        writer.add(text, prompt.query)
    return pieces_of(writer, [StoppedText(text, model.tokenizer, options.stop) for text in tokens])


class TokenWriter:
    """A writer that continues prompts, one token each per step; prompts may join and leave between steps.

    Arguments and faults are those of `generate`; stop strings are for `StoppedText`.
    """

    def __init__(
        self,
        model: WritingModel,
        options: GenerationOptions | None = None,
        source: FromRetriever | None = None,
        parts: Parts = IN_CONTEXT,
    ) -> None:
        self._model = model
        self._options = options or GenerationOptions()
        self._source = source
        self._parts = parts
        self._max_length = self._options.max_length or model.max_length
        parts.check_generation(model)
        check_length(model, self._max_length)
        length, stride = self._options.document_tokens, self._options.stride
        PlanOptions(stride=stride, document_tokens=length, max_length=self._max_length).check_documents(parts.joined)
        passages = source.passages if source else ()
        self._documents = PassageDocuments(passages, model.tokenizer, length, self._options.bos)
        self._decoder = Decoder(model, self._options, self._max_length)

    def add(self, prompt: IntArray, query: str | None = None, seed: int | None = None) -> int:
        """Add a prompt, to be continued from the next step on.

        Args:
            prompt: At least one token id (int64).
            query: What the retriever gets; by default the last tokens of the growing text.
            seed: Of the prompt's own random draws; by default that of the options.

        Returns:
            The number of the prompt.
        """
        if len(prompt) == 0:
            raise UsageError("the prompt is empty: give at least one token to continue.")
        text = without_first(prompt, self._documents.first)
        generator = None if seed is None else np.random.default_rng(seed)
        without = self._parts.readings([], self._documents)
        return self._decoder.add(PromptState(text, query, without, generator))

    def end(self, number: int) -> None:
        """Stop continuing this prompt."""
        self._decoder.end(number)

    def step(self) -> list[tuple[int, GeneratedToken]]:
        """Return the next token of every unfinished prompt, with the prompt's number; empty once all have ended."""
        while self._decoder.unfinished:
            self._retrieve([state for state in self._decoder.unfinished if state.written % self._options.stride == 0])
            if written := self._decoder.step():
                return written
        return []

    def _retrieve(self, prompts: Sequence[PromptState]) -> None:
        if self._source is None or not prompts:
            return
        source, tokenizer, last = self._source, self._model.tokenizer, self._options.query_tokens
        queries = [tokenizer.decode(state.text[-last:]) if state.query is None else state.query for state in prompts]
        hits = source.search(queries, self._parts.hits)
        rows = PromptRows(prompts, queries, self._model, self._documents, source.passages, self._options)
        hits = self._parts.choose(rows, hits, source.passages)
        for row, prompt in enumerate(prompts):
            prompt.readings = self._parts.readings(hits.of(row), self._documents)
            prompt.readings_end = prompt.written + self._options.stride
            self._parts.check_room(prompt.readings, self._options.stride, self._max_length)
        self._decoder.read_evidence(prompts, self._parts)


class Decoder:
    """Texts that are continued from their prompt prefixes; a `cache` shares what is read with scoring."""

    def __init__(
        self, model: WritingModel, options: GenerationOptions, max_length: int, cache: SharedCache | None = None
    ) -> None:
        if options.temperature > 0 and traits_of(model).answers_only:
            raise UsageError(
                f"{model.name} answers messages, and an answer cannot be drawn token by token: set `temperature` to 0."
            )
        self._model = model
        self._options = options
        self._max_length = max_length
        self._cache = cache or SharedCache(model)
        self._states: dict[int, PromptState] = {}
        self._added = 0

    @property
    def unfinished(self) -> Sequence[PromptState]:
        """Return the texts that have not ended; their readings may be changed before a step."""
        return list(self._states.values())

    def add(self, state: PromptState) -> int:
        """Add a text, to be continued from the next step on; return its number."""
        if len(state.readings) > 1 and self._model.tier == "text":
            raise UsageError(
                f"{self._model.name} gives text alone, so that its predictions cannot be averaged over "
                f"{len(state.readings)} passages: read one passage, several in one context, or let each passage "
                "answer."
            )
        state.generator = state.generator or np.random.default_rng(self._options.seed)
        self._states[self._added] = state
        self._added += 1
        return self._added - 1

    def end(self, number: int) -> None:
        """Stop continuing this text."""
        self._states.pop(number, None)

    def read_evidence(self, states: Sequence[PromptState], parts: Parts) -> None:
        """Read the end of each text after its prompt prefixes, as much as its mixer looks at and all of them have."""
        requests: list[Request] = []
        for state in states:
            state.evidence = None
            if parts.looks_at(state.readings):
                texts = self._texts(state)
                shared = min(
                    len(text) - max(1, len(prefix.tokens)) for text, prefix in zip(texts, state.readings, strict=True)
                )
                last = min(parts.evidence, shared)
                state.evidence = Evidence(parts, np.zeros((len(texts), last), dtype=np.float32))
                requests += [Request(text[:-last], text[:0], text[-last:]) for text in texts if last]
        scored = iter(Scorer(self._model, progress=False, cache=self._cache).log_probs(requests))
        for evidence in (state.evidence for state in states if state.evidence is not None):
            if evidence.log_probs_KN.size:
                evidence.log_probs_KN = np.stack([next(scored) for _ in evidence.log_probs_KN])

    def step(self) -> list[tuple[int, GeneratedToken]]:
        """Return the next token of every unfinished text with the text's number, without those that end there."""
        states = list(self._states.items())
        if not states:
            return []
        texts, draws = list[IntArray](), list[Draw]()
        for _, state in states:
            first = len(texts)
            texts += self._texts(state)
            draws.append(self._draw(state, range(first, len(texts))))
        if self._cache.read_ahead is not None and self._options.temperature == 0:
            averages = zip(states, draws, strict=True)
            self._cache.read_ahead(
                [self._ahead(state, [texts[row] for row in draw.rows]) for (_, state), draw in averages]
            )
        drawn = draw_tokens(self._cache.continuations, texts, draws, chosen=self._model.tier == "chosen")
        written = []
        for (number, state), draw, next_token in zip(states, draws, drawn, strict=True):
            state.text = np.append(state.text, next_token.token)
            state.written += 1
            if next_token.token in self._model.end_tokens or state.written == self._options.new_tokens:
                self.end(number)
            if next_token.token in self._model.end_tokens:
                continue  # the end may have no id to ask for
            written.append((number, GeneratedToken.of(next_token, draw, state.readings.passages_K)))
            if state.evidence is not None:
                state.evidence.add(self._log_probs(next_token, [texts[row] for row in draw.rows]))
        return written

    def _texts(self, state: PromptState) -> list[IntArray]:
        """Return each prompt prefix and the text, without its oldest tokens if both and the next token do not fit."""
        over = len(state.text) + 1 - self._max_length
        prefixes = (prompt_prefix.tokens for prompt_prefix in state.readings)
        return [np.concatenate([prefix, state.text[max(0, len(prefix) + over) :]]) for prefix in prefixes]

    def _ahead(self, state: PromptState, texts: Sequence[IntArray]) -> TextsAhead:
        """Return the texts of an average, which only grow until they are retrieved for again or fill the model."""
        remaining = min(state.readings_end, self._options.new_tokens) - state.written
        room = self._max_length - max(map(len, texts))
        return TextsAhead(texts, min(remaining, room), state.written)

    def _draw(self, state: PromptState, rows: range) -> Draw:
        """Return how the next token of a text is drawn from the predictions after its prompt prefixes."""
        assert state.generator is not None, "set when the text was added"
        evidence = state.evidence
        readings = state.readings if evidence is None else evidence.weighed(state.readings)
        draw = self._options.draw(rows, readings.log_weights_K, state.generator)
        if evidence is None or not evidence.parts.contrasts:
            return draw
        return replace(draw, distribution=partial(evidence.parts.next_token, readings), alpha=evidence.parts.alpha)

    def _log_probs(self, drawn: Drawn, texts: Sequence[IntArray]) -> FloatArray:
        """Return the log-probability (float32, K) of a token that was drawn after each text."""
        if self._model.tier != "chosen":
            return drawn.log_probs_K
        choosing: Any = self._cache.continuations
        log_probs_K1: FloatArray = choosing.chosen(texts, np.array([drawn.token], dtype=np.int64)).log_probs_BC
        return log_probs_K1[:, 0]


def pieces_of(writer: TokenWriter | Decoder, texts: Sequence[StoppedText]) -> Iterator[tuple[int, GeneratedText]]:
    """Yield the pieces that are written, each with the number of its text, up to the stop strings."""
    while written := writer.step():
        for number, token in written:
            for piece in texts[number].add(token):
                yield number, piece
            if texts[number].found:
                writer.end(number)
    for number, text in enumerate(texts):
        for piece in text.rest():
            yield number, piece

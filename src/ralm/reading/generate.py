"""Generation with passages: every s tokens retrieve, rerank, and put passages in front; then continue the text.

    p(y | x) = sum over prompt prefixes d of  weight_d  p(y | [d; x])             (REPLUG, Eq. 2)

Each step draws one token from this average (`ralm.reading.generate`). With one prompt prefix this is In-Context RALM,
without passages the plain model. Works on token ids; knows nothing of terminals.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ralm.errors import UsageError
from ralm.lm.scoring import SharedCache
from ralm.protocols import Reader, Reranker, WritingModel, traits_of
from ralm.reading.in_context import InContext
from ralm.reading.pieces import GeneratedText, GeneratedToken, StoppedText
from ralm.reading.rows import PromptRows, PromptState
from ralm.reading.sampling import GenerationOptions, draw_token
from ralm.reading.score import check_room, chosen, hits_wanted, prompt_prefixes_of
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import PassageDocuments, first_tokens, without_first
from ralm.records import DoubleArray, IntArray, NextTokens, TextsAhead
from ralm.validation import check_length, retrieve_checked


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue.

    The retriever is asked with `query`; by default with the last `query_tokens` of the growing text.
    """

    text: str
    query: str | None = None


def generate(
    prompt: str | Prompt,
    model: WritingModel,
    options: GenerationOptions | None = None,
    source: FromRetriever | None = None,
    *,
    reader: Reader | None = None,
    reranker: Reranker | None = None,
) -> Iterator[GeneratedText]:
    """Continue a prompt; pieces come as soon as they cannot belong to a stop string.

    Without a `source` no passage is put in front. `reader` and `reranker` are as for `evaluate_text`. Raises
    UsageError if the prompt is empty, if the document and a stride do not fit into the model's length, if `max_length`
    exceeds it, or if the reranker looks at the text to be predicted.
    """
    pieces = generate_many([prompt], model, options, source, reader=reader, reranker=reranker)
    return (piece for _, piece in pieces)


def generate_many(
    prompts: Sequence[str | Prompt],
    model: WritingModel,
    options: GenerationOptions | None = None,
    source: FromRetriever | None = None,
    *,
    reader: Reader | None = None,
    reranker: Reranker | None = None,
) -> Iterator[tuple[int, GeneratedText]]:
    """Continue many prompts together; yields the number of a prompt and its next piece.

    Each prompt gets the same text as if it were alone. Raises what `generate` raises.
    """
    options = options or GenerationOptions()
    given = [prompt if isinstance(prompt, Prompt) else Prompt(prompt) for prompt in prompts]
    tokens = [model.tokenizer.encode(prompt.text) for prompt in given]
    for number, text in enumerate(tokens):
        if len(text) == 0:
            which = "the prompt" if len(prompts) == 1 else f"prompt {number + 1} of {len(prompts)}"
            raise UsageError(f"{which} is empty: give at least one word to continue.")
    writer = TokenWriter(model, options, source, reader=reader, reranker=reranker)
    for text, prompt in zip(tokens, given, strict=True):
        writer.add(text, prompt.query)
    return pieces_of(writer, [StoppedText(text, model.tokenizer, options.stop) for text in tokens])


class TokenWriter:
    """Continues prompts, one token each per step; prompts may join and leave between steps.

    Raises UsageError if the reranker looks at the text to be predicted, if the document and a stride do not fit into
    the model's length, or if `max_length` exceeds it.
    """

    def __init__(
        self,
        model: WritingModel,
        options: GenerationOptions | None = None,
        source: FromRetriever | None = None,
        *,
        reader: Reader | None = None,
        reranker: Reranker | None = None,
    ) -> None:
        self._model = model
        self._options = options or GenerationOptions()
        self._source = source
        self._reader = reader or InContext()
        self._reranker = reranker
        self._max_length = length_read(model, self._options, self._reader)
        self._hits = hits_wanted(self._reader, reranker)
        if getattr(reranker, "needs_targets", False):
            raise UsageError(
                f"the reranker {type(reranker).__name__} looks at the text to be predicted, which generation does not "
                "have: choose another one."
            )
        self._first = first_tokens(model.tokenizer, self._options.bos)
        passages = source.passages if source else ()
        self._documents = PassageDocuments(passages, model.tokenizer, self._options.document_tokens, self._first)
        self._decoder = Decoder(model, self._options, self._max_length)

    def add(self, prompt: IntArray, query: str | None = None, seed: int | None = None) -> int:
        """Add a prompt of at least one token id (int64), to be continued from the next step on; returns its number.

        The retriever is asked with `query`; by default with the last tokens of the growing text. `seed` is that of the
        prompt's own random draws; by default that of the options.
        """
        if len(prompt) == 0:
            raise UsageError("the prompt is empty: give at least one token to continue.")
        text = without_first(prompt, self._first)
        state = PromptState(text, query, prompt_prefixes_of(self._reader, [], self._documents))
        return self._decoder.add(state, None if seed is None else np.random.default_rng(seed))

    def end(self, number: int) -> None:
        """Stop continuing this prompt."""
        self._decoder.end(number)

    def step(self) -> list[tuple[int, GeneratedToken]]:
        """The next token of every unfinished prompt, with the prompt's number; empty once all have ended."""
        while self._decoder.unfinished:
            self._retrieve([one for one in self._decoder.unfinished if one.written % self._options.stride == 0])
            if written := self._decoder.step():
                return written
        return []

    def _retrieve(self, prompts: Sequence[PromptState]) -> None:
        """Choose the prompt prefixes of some prompts for the next stride."""
        if self._source is None or not prompts:
            return
        source, tokenizer, last = self._source, self._model.tokenizer, self._options.query_tokens
        queries = [tokenizer.decode(one.text[-last:]) if one.query is None else one.query for one in prompts]
        hits = retrieve_checked(source.retriever, queries, self._hits, len(source.passages))
        if self._reranker is not None:
            rows = PromptRows(prompts, queries, self._model, self._documents, source.passages, self._options)
            hits = chosen(self._reranker, rows, hits, source.passages, self._reader.hits)
        for row, prompt in enumerate(prompts):
            prompt.prompt_prefixes = prompt_prefixes_of(self._reader, hits.of(row), self._documents)
            prompt.prefixes_end = prompt.written + self._options.stride
            check_room(self._reader, prompt.prompt_prefixes, self._options.stride, self._max_length)


def length_read(model: WritingModel, options: GenerationOptions, reader: Reader | None = None) -> int:
    """The most tokens that are read at once, the next one included.

    Raises UsageError if the model cannot read as many, or if the documents and a stride do not fit into them.
    """
    length = model.max_length if options.max_length is None else options.max_length
    check_length(model, length)
    joined = getattr(reader, "joined", 1)
    if joined * options.document_tokens + options.stride > length:
        several = f"{joined} documents of " if joined > 1 else ""
        raise UsageError(
            f"{several}`document_tokens` {options.document_tokens} and `stride` {options.stride} do not fit together "
            f"into the model length {length}; lower one of them."
        )
    return length


class Decoder:
    """Texts that are being continued; others may join and leave between steps.

    At most `max_length` tokens are read at once, the next one included. Every text draws with its own random generator,
    seeded with `seed` if none is given with the text.
    A `cache` shares what is read with scoring, and with decoders before.

    Raises UsageError if tokens are to be drawn at random from a model that answers messages.
    """

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
        cache = cache or SharedCache(model)
        self._continuations, self._model_reads_ahead = cache.continuations, cache.read_ahead
        self._going_on: dict[int, _Drawn] = {}
        self._added = 0

    @property
    def unfinished(self) -> Sequence[PromptState]:
        """The texts that have not ended; their prompt prefixes may be changed before a step."""
        return [one.state for one in self._going_on.values()]

    def add(self, state: PromptState, generator: np.random.Generator | None = None) -> int:
        """Add a text, to be continued from the next step on; returns its number. With its prompt prefixes it has at
        least one token."""
        if len(state.prompt_prefixes) > 1 and self._model.tier == "text":
            raise UsageError(
                f"{self._model.name} gives text alone, so that its predictions cannot be averaged over "
                f"{len(state.prompt_prefixes)} passages: read one passage, several in one context, or let each passage "
                "answer."
            )
        self._going_on[self._added] = _Drawn(state, generator or np.random.default_rng(self._options.seed))
        self._added += 1
        return self._added - 1

    def end(self, number: int) -> None:
        """Stop continuing this text."""
        self._going_on.pop(number, None)

    def step(self) -> list[tuple[int, GeneratedToken]]:
        """The next token of every unfinished text with the text's number, without those that end there."""
        going_on = list(self._going_on.items())
        if not going_on:
            return []
        texts = {number: self._texts(one.state) for number, one in going_on}
        self._read_ahead([(one.state, texts[number]) for number, one in going_on])
        given = self._continuations.next_tokens([text for some in texts.values() for text in some])
        written, row = [], 0
        for number, one in going_on:
            prompt_prefixes = slice(row, row := row + len(one.state.prompt_prefixes))
            token = self._write(one, texts[number], given.of(prompt_prefixes))
            if token.token not in self._model.end_tokens:
                written.append((number, token))
            if token.token in self._model.end_tokens or one.state.written == self._options.new_tokens:
                self.end(number)
        return written

    def _texts(self, state: PromptState) -> list[IntArray]:
        """The texts to read: each prompt prefix and the text, whose oldest tokens are dropped until both and the next
        token fit into the model."""
        prompt_prefixes = [prompt_prefix.tokens for prompt_prefix in state.prompt_prefixes]
        begins = [
            max(0, len(prompt_prefix) + len(state.text) + 1 - self._max_length) for prompt_prefix in prompt_prefixes
        ]
        return [
            np.concatenate([prompt_prefix, state.text[begin:]])
            for prompt_prefix, begin in zip(prompt_prefixes, begins, strict=True)
        ]

    def _read_ahead(self, several: Sequence[tuple[PromptState, Sequence[IntArray]]]) -> None:
        """Tell the model what it will be asked for, if it wants to know."""
        if self._model_reads_ahead is not None and self._options.temperature == 0:
            self._model_reads_ahead([self._ahead(state, texts) for state, texts in several])

    def _ahead(self, state: PromptState, texts: Sequence[IntArray]) -> TextsAhead:
        """The texts of an average, which only grow until they are retrieved for again or fill the model's length."""
        left = min(state.prefixes_end, self._options.new_tokens) - state.written
        room = self._max_length - max(map(len, texts))
        return TextsAhead(texts, _log_weights(state), min(left, room), state.written)

    def _write(self, one: "_Drawn", texts: Sequence[IntArray], given: NextTokens) -> GeneratedToken:
        """Draw a token from the average of the distributions, and append it to the text."""

        def chosen(wanted: IntArray) -> NextTokens:
            return self._continuations.next_tokens(texts, wanted)

        drawn = draw_token(
            given,
            _log_weights(one.state),
            one.generator,
            self._options,
            chosen if self._model.tier == "chosen" else None,
        )
        one.state.append(drawn.token)
        passages_K = np.array([prompt_prefix.passage for prompt_prefix in one.state.prompt_prefixes], dtype=np.int64)
        return GeneratedToken(
            drawn.token,
            drawn.log_prob,
            passages_K,
            drawn.posteriors_K,
            drawn.unlisted,
            drawn.certified,
            drawn.likeliest,
        )


def _log_weights(state: PromptState) -> DoubleArray:
    return np.array([prompt_prefix.log_weight for prompt_prefix in state.prompt_prefixes], dtype=np.float64)


class Writes(Protocol):
    """What continues texts, one token each per step, such as a `Decoder`."""

    def step(self) -> list[tuple[int, GeneratedToken]]:
        """The next token of every text that goes on, with the text's number; empty once all have ended."""

    def end(self, number: int) -> None:
        """Stop continuing this text."""


def pieces_of(writer: Writes, texts: Sequence[StoppedText]) -> Iterator[tuple[int, GeneratedText]]:
    """What is written, piece by piece, each with the number of its text, up to the stop strings."""
    while written := writer.step():
        for number, token in written:
            for piece in texts[number].add(token):
                yield number, piece
            if texts[number].found:
                writer.end(number)
    for number, text in enumerate(texts):
        for piece in text.rest():
            yield number, piece


@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    """A text and the random generator of its draws."""

    state: PromptState
    generator: np.random.Generator

"""In-Context RALM generation: retrieve every s tokens, put the passage in front, go on writing.

Works on token ids with whatever retriever and model it is handed; knows nothing of terminals. What is generated
comes out as it is made, each piece with the passage it was read with.

The model's cache is kept for as long as the passage and the beginning of the context stay the same; where either
changes, [document; context] is read anew (In-Context RALM, section 3.2: the runtime cost of a short stride).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ralm.errors import UsageError
from ralm.protocols import Continuation, LanguageModel, Retriever, Tokenizer
from ralm.reading.in_context import Documents
from ralm.records import NO_PASSAGE, FloatArray, IntArray, Passages

_DECODED_BEFORE = 8
"""How many tokens of the prompt are decoded with the first piece, so that it joins as it would in a whole text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """How to write on; lengths in tokens, the retrieval options with the paper's values as defaults.

    `temperature` 0 is greedy; otherwise tokens are drawn from the likeliest ones that together have probability
    `top_p`. Writing ends after `new_tokens` tokens, at the model's end-of-text token, or before the first of the
    `stop` strings. `max_length` None is the model's own.

    Raises UsageError where a value makes no sense.
    """

    new_tokens: int = 64
    stride: int = 4
    query_tokens: int = 32
    document_tokens: int = 256
    max_length: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("new_tokens", "stride", "query_tokens", "document_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}.")
        if not self.temperature >= 0:
            raise UsageError(f"--temperature must be 0 (greedy) or more, not {self.temperature}.")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p must be above 0 and at most 1, not {self.top_p}.")
        if "" in self.stop:
            raise UsageError("--stop must not be empty.")


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    """One token that was written, and what it was read with.

    `log_prob` is natural, under the model itself (before temperature and top-p); `passage` may be `NO_PASSAGE`.
    """

    token: int
    log_prob: float
    passage: int


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """A piece of text that was written, all of it with one passage (or `NO_PASSAGE`) in front."""

    text: str
    passage: int


def generate(
    prompt: str,
    model: LanguageModel,
    options: GenerationOptions,
    retriever: Retriever | None = None,
    passages: Passages = (),
) -> Iterator[GeneratedText]:
    """Write on from a prompt; pieces come as soon as they are certain not to belong to a stop string.

    Without a retriever nothing is put in front. Raises UsageError for an empty prompt, and where the document and a
    stride do not fit into the model's length.
    """
    tokens = model.tokenizer.encode(prompt)
    if len(tokens) == 0:
        raise UsageError("the prompt is empty: give at least one word to go on from.")
    written = generate_tokens(tokens, model, options, retriever, passages)
    return until_stop(_as_text(tokens, written, model.tokenizer), options.stop)


def spans(pieces: Iterable[GeneratedText]) -> Iterator[GeneratedText]:
    """The same text with neighbouring pieces of one passage joined: which part of it was read with which passage."""
    for passage, run in groupby(pieces, key=lambda piece: piece.passage):
        yield GeneratedText(text="".join(piece.text for piece in run), passage=passage)


def generate_tokens(
    prompt: IntArray,
    model: LanguageModel,
    options: GenerationOptions,
    retriever: Retriever | None = None,
    passages: Passages = (),
) -> Iterator[GeneratedToken]:
    """The tokens written after a prompt of token ids (int64, at least one), one by one."""
    reader = _StrideReader(model, options, retriever, passages)
    generator = np.random.default_rng(options.seed)
    text = prompt
    for step in range(options.new_tokens):
        if step % options.stride == 0:
            reader.retrieve(text)
        log_probs_V = reader.next_log_probs_V(text)
        token = sample(log_probs_V, options.temperature, options.top_p, generator)
        if token in model.end_tokens:
            return
        yield GeneratedToken(token=token, log_prob=float(log_probs_V[token]), passage=reader.passage)
        text = np.append(text, token)


def sample(log_probs_V: FloatArray, temperature: float, top_p: float, generator: np.random.Generator) -> int:
    """A token id drawn from log-probabilities: the likeliest at temperature 0, else by nucleus sampling.

    The nucleus is the smallest set of likeliest tokens whose probability, after temperature, reaches `top_p`.
    """
    if temperature == 0:
        return int(np.argmax(log_probs_V))
    logits_V = log_probs_V.astype(np.float64) / temperature
    order_V = np.argsort(-logits_V, kind="stable")
    probs_V = np.exp(logits_V[order_V] - logits_V[order_V[0]])
    probs_V /= probs_V.sum()
    kept = int(np.searchsorted(np.cumsum(probs_V), top_p)) + 1
    nucleus = probs_V[:kept] / probs_V[:kept].sum()
    return int(order_V[generator.choice(len(nucleus), p=nucleus)])


def until_stop(pieces: Iterable[GeneratedText], stop: Sequence[str]) -> Iterator[GeneratedText]:
    """The same text up to the first stop string, which itself is left out.

    The end of the text that could still become a stop string is held back until it is certain.
    """
    held: list[GeneratedText] = []
    for piece in pieces:
        held.append(piece)
        text = "".join(part.text for part in held)
        found = [text.index(string) for string in stop if string in text]
        if found:
            yield from _cut(held, min(found))
            return
        certain = len(text) - max((_overlap(text, string) for string in stop), default=0)
        yield from _cut(held, certain)
        held = _rest(held, certain)
    yield from held


class _StrideReader:
    """The state of writing: the passage in front, and the model's cache of what it has read."""

    def __init__(
        self, model: LanguageModel, options: GenerationOptions, retriever: Retriever | None, passages: Passages
    ) -> None:
        self.passage = NO_PASSAGE
        self._model = model
        self._options = options
        self._retriever = retriever
        self._documents = Documents(passages, model.tokenizer, options.document_tokens)
        self._max_length = options.max_length or model.max_length
        self._continuation: Continuation | None = None
        self._read_from = (NO_PASSAGE, 0)
        self._read_to = 0
        if options.document_tokens + options.stride > self._max_length:
            raise UsageError(
                f"--document-tokens {options.document_tokens} and --stride {options.stride} do not fit together into "
                f"the model length {self._max_length}; lower one of them."
            )

    def retrieve(self, text: IntArray) -> None:
        """Choose the passage for the stride that follows `text`."""
        if self._retriever is None:
            return
        query = self._model.tokenizer.decode(text[-self._options.query_tokens :])
        self.passage = int(self._retriever.retrieve([query], 1).numbers_QK[0, 0])

    def next_log_probs_V(self, text: IntArray) -> FloatArray:
        """Log-probabilities of the token after `text`, read with the passage in front and the oldest tokens dropped
        until [document; text; next token] fits the model."""
        document = self._documents[self.passage]
        begin = max(0, len(document) + len(text) + 1 - self._max_length)
        if self._continuation is None or self._read_from != (self.passage, begin):
            self._continuation = self._model.read(np.concatenate([document, text[begin:]]))
            self._read_from = (self.passage, begin)
        else:
            self._continuation.append(text[self._read_to :])
        self._read_to = len(text)
        return self._continuation.next_log_probs_V


def _as_text(prompt: IntArray, written: Iterable[GeneratedToken], tokenizer: Tokenizer) -> Iterator[GeneratedText]:
    """Tokens as text, each piece complete: a character of several tokens comes with its last one.

    A piece is what decoding gains by its tokens after those of the piece before, since some tokenizers write the space
    before a word only where something stands before it.
    """
    before, pending = prompt[-_DECODED_BEFORE:].tolist(), []
    passage = NO_PASSAGE
    for token in written:
        pending.append(token.token)
        passage = token.passage
        piece = _gained(before, pending, tokenizer)
        if piece and not piece.endswith("\N{REPLACEMENT CHARACTER}"):
            yield GeneratedText(text=piece, passage=passage)
            before, pending = pending, []
    if pending:
        yield GeneratedText(text=_gained(before, pending, tokenizer), passage=passage)


def _gained(before: list[int], tokens: list[int], tokenizer: Tokenizer) -> str:
    """The text that `tokens` add after the tokens before them."""
    without = tokenizer.decode(np.array(before, dtype=np.int64))
    return tokenizer.decode(np.array(before + tokens, dtype=np.int64))[len(without) :]


def _overlap(text: str, string: str) -> int:
    """The length of the longest end of `text` that is a proper beginning of `string`."""
    return next((n for n in range(min(len(text), len(string) - 1), 0, -1) if text.endswith(string[:n])), 0)


def _cut(pieces: Sequence[GeneratedText], length: int) -> Iterator[GeneratedText]:
    """The first `length` characters of the pieces."""
    for piece in pieces:
        if length > 0:
            yield GeneratedText(text=piece.text[:length], passage=piece.passage)
        length -= len(piece.text)


def _rest(pieces: Sequence[GeneratedText], begin: int) -> list[GeneratedText]:
    """What follows the first `begin` characters of the pieces."""
    rest = []
    for piece in pieces:
        if begin < len(piece.text):
            rest.append(GeneratedText(text=piece.text[max(0, begin) :], passage=piece.passage))
        begin -= len(piece.text)
    return rest

"""Generation with passages: every s tokens retrieve, rerank, and put passages in front; then continue the text.

    p(y | x) = sum over fronts d of  weight_d  p(y | [d; x])             (REPLUG, Eq. 2)

Each step draws one token from this average. With one front this is In-Context RALM, without passages the plain model.
All fronts of all prompts are read together, and prompts may join and leave between steps. The model caches what it has
read (`Continuations`). Works on token ids; knows nothing of terminals.

Shapes: K fronts of a prompt, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ralm.asking import ask, check_length
from ralm.errors import UsageError
from ralm.pipeline.options import GenerationOptions
from ralm.pipeline.prompt_rows import PromptRows, PromptState
from ralm.pipeline.reading import check_room, chosen, fronts_of, hits_wanted
from ralm.pipeline.sources import FromRetriever
from ralm.protocols import Reader, Reranker, WritingModel
from ralm.reading.beginning import first_tokens, without_first
from ralm.reading.documents import PassageDocuments
from ralm.reading.ensemble import mixture, posterior
from ralm.reading.in_context import InContext
from ralm.reading.pieces import GeneratedText, GeneratedToken, Pieces
from ralm.reading.sampling import sample
from ralm.reading.stop import UntilStop
from ralm.records import FloatArray, IntArray


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

    Without a `source` no passage is put in front. `reader` and `reranker` are as for `evaluate_text`. Raises UsageError
    if the prompt is empty, if the document and a stride do not fit into the model's length, if `max_length` exceeds it,
    or if the reranker looks at the text to be predicted.
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
    return _as_text(writer, tokens, model, options)


def _as_text(
    writer: "TokenWriter", prompts: Sequence[IntArray], model: WritingModel, options: GenerationOptions
) -> Iterator[tuple[int, GeneratedText]]:
    pieces = [Pieces(prompt, model.tokenizer) for prompt in prompts]
    until = [UntilStop(options.stop) for _ in prompts]
    while written := writer.step():
        for number, token in written:
            for piece in until[number].add(pieces[number].add(token)):
                yield number, piece
            if until[number].found:
                writer.end(number)
    for number in range(len(prompts)):
        for piece in (*until[number].add(pieces[number].rest()), *until[number].rest()):
            yield number, piece


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
        self._continuations = model.continuations()
        self._going_on: dict[int, _Prompt] = {}
        self._added = 0

    def add(self, prompt: IntArray, query: str | None = None) -> int:
        """Add a prompt of at least one token id (int64), to be continued from the next step on; returns its number.

        The retriever is asked with `query`; by default with the last tokens of the growing text.
        """
        if len(prompt) == 0:
            raise UsageError("the prompt is empty: give at least one token to continue.")
        text = without_first(prompt, self._first)
        state = PromptState(text, query, fronts_of(self._reader, [], self._documents))
        self._going_on[self._added] = _Prompt(state, np.random.default_rng(self._options.seed))
        self._added += 1
        return self._added - 1

    def end(self, number: int) -> None:
        """Stop continuing this prompt."""
        self._going_on.pop(number, None)

    def step(self) -> list[tuple[int, GeneratedToken]]:
        """The next token of every unfinished prompt, with the prompt's number; empty once all have ended."""
        while self._going_on:
            if written := self._step():
                return written
        return []

    def _step(self) -> list[tuple[int, GeneratedToken]]:
        self._retrieve([one.state for one in self._going_on.values() if one.state.written % self._options.stride == 0])
        prompts = list(self._going_on.items())
        texts = [text for _, prompt in prompts for text in self._texts(prompt.state)]
        given = self._continuations.next_tokens(texts)
        written, row = [], 0
        for number, prompt in prompts:
            fronts = slice(row, row := row + len(prompt.state.fronts))
            ids_KC = None if given.tokens_BC is None else given.tokens_BC[fronts]
            token = self._write(prompt, given.log_probs_BC[fronts], ids_KC)
            if token.token not in self._model.end_tokens:
                written.append((number, token))
            if token.token in self._model.end_tokens or prompt.state.written == self._options.new_tokens:
                self.end(number)
        return written

    def _retrieve(self, prompts: Sequence[PromptState]) -> None:
        """Choose the fronts of some prompts for the next stride."""
        if self._source is None or not prompts:
            return
        source, tokenizer, last = self._source, self._model.tokenizer, self._options.query_tokens
        queries = [tokenizer.decode(one.text[-last:]) if one.query is None else one.query for one in prompts]
        hits = ask(source.retriever, queries, self._hits, len(source.passages))
        if self._reranker is not None:
            rows = PromptRows(prompts, queries, self._model, self._documents, source.passages, self._options)
            hits = chosen(self._reranker, rows, hits, source.passages, self._reader.hits)
        for row, prompt in enumerate(prompts):
            prompt.fronts = fronts_of(self._reader, hits.of(row), self._documents)
            check_room(self._reader, prompt.fronts, self._options.stride, self._max_length)

    def _texts(self, prompt: PromptState) -> list[IntArray]:
        """The texts to read: each front and the prompt's text, whose oldest tokens are dropped until both and the next
        token fit into the model."""
        fronts = [front.tokens for front in prompt.fronts]
        begins = [max(0, len(front) + len(prompt.text) + 1 - self._max_length) for front in fronts]
        return [np.concatenate([front, prompt.text[begin:]]) for front, begin in zip(fronts, begins, strict=True)]

    def _write(self, prompt: "_Prompt", log_probs_KC: FloatArray, ids_KC: IntArray | None) -> GeneratedToken:
        """Draw a token from the average of the distributions, and append it to the text."""
        options, fronts = self._options, prompt.state.fronts
        if ids_KC is not None:
            log_probs_KC, ids_KC = self._listed(log_probs_KC, ids_KC)
        log_weights_K = np.array([front.log_weight for front in fronts])
        log_probs_C = mixture(log_probs_KC, log_weights_K)
        drawn = sample(
            log_probs_C,
            prompt.generator,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
        )
        token = drawn if ids_KC is None else int(ids_KC[0, drawn])
        prompt.state.append(token)
        posteriors_K = posterior(log_probs_KC[:, [drawn]], log_weights_K)[0]
        passages_K = np.array([front.passage for front in fronts], dtype=np.int64)
        return GeneratedToken(token, float(log_probs_C[drawn]), passages_K, posteriors_K)

    def _listed(self, log_probs_KC: FloatArray, ids_KC: IntArray) -> tuple[FloatArray, IntArray]:
        """The tokens that a model gives, the likeliest ones only, in the order of their ids.

        Raises UsageError if other tokens are needed too: for an average, or for a draw from more tokens.
        """
        count = ids_KC.shape[1]
        if len(ids_KC) > 1:
            raise UsageError(
                f"{self._model.name} gives only its {count} likeliest next tokens, which cannot be averaged over "
                f"{len(ids_KC)} passages: read one passage."
            )
        if self._options.temperature > 0 and (self._options.top_k or count + 1) > count:
            raise UsageError(
                f"{self._model.name} gives only its {count} likeliest next tokens: set `top_k` to {count} or less, or "
                "`temperature` to 0."
            )
        order = np.argsort(ids_KC, axis=1)
        return np.take_along_axis(log_probs_KC, order, axis=1), np.take_along_axis(ids_KC, order, axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class _Prompt:
    """A prompt and the random generator of its draws."""

    state: PromptState
    generator: np.random.Generator


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

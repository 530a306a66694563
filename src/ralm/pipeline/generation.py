"""Generation with passages: every s tokens retrieve, rerank, and put passages in front; then continue the text.

    p(y | x) = sum over fronts d of  weight_d  p(y | [d; x])             (REPLUG, Eq. 2)

Each step draws one token from this average (`ralm.pipeline.decoding`). With one front this is In-Context RALM, without
passages the plain model. Works on token ids; knows nothing of terminals.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ralm.asking import ask, check_length
from ralm.errors import UsageError
from ralm.pipeline.decoding import Decoder, pieces_of
from ralm.pipeline.options import GenerationOptions
from ralm.pipeline.prompt_rows import PromptRows, PromptState
from ralm.pipeline.reading import check_room, chosen, fronts_of, hits_wanted
from ralm.pipeline.sources import FromRetriever
from ralm.protocols import Reader, Reranker, WritingModel
from ralm.reading.beginning import first_tokens, without_first
from ralm.reading.documents import PassageDocuments
from ralm.reading.in_context import InContext
from ralm.reading.pieces import GeneratedText, GeneratedToken
from ralm.reading.stop import StoppedText
from ralm.records import IntArray


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
        state = PromptState(text, query, fronts_of(self._reader, [], self._documents))
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
            prompt.fronts_end = prompt.written + self._options.stride
            check_room(self._reader, prompt.fronts, self._options.stride, self._max_length)


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

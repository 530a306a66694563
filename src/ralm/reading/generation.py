"""Generation with passages: retrieve every s tokens, put each passage in front, go on writing from what they predict.

    p(y | x) = sum over d of  lambda_d  p(y | [d; x])                    (REPLUG, Eq. 2)

One token a step is drawn from that average, whatever the number of documents: with one it is In-Context RALM, with none
the plain model. Works on token ids with whatever retriever and model it is handed; knows nothing of terminals. All
documents of all prompts are read together; what was read before is the model's own affair (`Continuations`).

Shapes: K documents of a prompt, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ralm.bounds import MOST_SEEDS
from ralm.errors import UsageError
from ralm.options import Needs, Option, check_options
from ralm.protocols import LanguageModel, Retriever, ask, check_length
from ralm.reading.beginning import BosOption, first_tokens, without_first
from ralm.reading.ensemble import COLDEST, DoubleArray, EnsembleOptions, document_log_weights, mixture, posterior
from ralm.reading.in_context import Documents
from ralm.reading.pieces import GeneratedText, GeneratedToken, Pieces
from ralm.reading.plan import QueryTokens, Stride
from ralm.reading.sampling import sample
from ralm.reading.stop import UntilStop
from ralm.records import NO_PASSAGE, FloatArray, Hits, IntArray, Passages

IN_CONTEXT = EnsembleOptions(documents=1)
"""In-Context RALM: an ensemble of one document."""
_DRAWN = Needs("a `temperature` above 0", lambda options: options.temperature > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """How to write on; lengths in tokens, the retrieval options with the paper's values as defaults.

    `ensemble` says how many documents are averaged, and how. `temperature` 0 is greedy; otherwise tokens are drawn from
    the `top_k` likeliest (None: all), and of these from the likeliest that together have probability `top_p`. Writing
    ends after `new_tokens` tokens, at the model's end-of-text token, or before the first of the `stop` strings.
    `max_length` None is the model's own. `bos` says with which special tokens everything that is read begins, with a
    document and without (see `beginning.Bos`); they count among the `document_tokens`, and a prompt that begins with
    them itself has them once. Every prompt draws with a generator of its own, begun with `seed`: what is written after
    it does not depend on the prompts beside it.

    Raises UsageError where a value makes no sense.
    """

    new_tokens: Annotated[int, Option("Write at most so many tokens.")] = 64
    stride: Stride = 4
    query_tokens: QueryTokens = 32
    document_tokens: Annotated[int, Option("Cut a passage to so many tokens.")] = 256
    max_length: Annotated[int | None, Option("Tokens read at once.", default_said="the model's")] = None
    ensemble: EnsembleOptions = IN_CONTEXT
    temperature: Annotated[float, Option("0 is greedy.", most=1 / COLDEST)] = 0.0
    top_k: Annotated[int | None, Option("Draw from so many likeliest tokens.", default_said="all", needs=_DRAWN)] = None
    top_p: Annotated[
        float,
        Option("Draw from the likeliest tokens of this probability.", least=0, most=1, above=True, needs=_DRAWN),
    ] = 1.0
    seed: Annotated[int, Option("Seed of whatever is drawn at random.", least=0, most=MOST_SEEDS, needs=_DRAWN)] = 0
    stop: Annotated[tuple[str, ...], Option("End before this string; may be given again.")] = ()
    bos: BosOption = "auto"

    def __post_init__(self) -> None:
        check_options(self)
        if 0 < self.temperature < COLDEST:
            raise UsageError(f"`temperature` must be 0 (greedy) or at least {COLDEST:g}, not {self.temperature}.")
        if "" in self.stop:
            raise UsageError("`stop` must not be empty.")


def generate(
    prompt: str,
    model: LanguageModel,
    options: GenerationOptions,
    retriever: Retriever | None = None,
    passages: Passages = (),
) -> Iterator[GeneratedText]:
    """Write on from a prompt; pieces come as soon as they are certain not to belong to a stop string.

    Without a retriever no passage is put in front. Raises UsageError for an empty prompt, and where the document and a
    stride do not fit into the model's length, or `max_length` is beyond it.
    """
    return (piece for _, piece in generate_many([prompt], model, options, retriever, passages))


def generate_many(
    prompts: Sequence[str],
    model: LanguageModel,
    options: GenerationOptions,
    retriever: Retriever | None = None,
    passages: Passages = (),
) -> Iterator[tuple[int, GeneratedText]]:
    """Write on from many prompts together: the number of a prompt, and the next piece after it, as they come.

    What is written after a prompt is what would be written after it alone. Raises as `generate` does.
    """
    tokens = [model.tokenizer.encode(prompt) for prompt in prompts]
    for number, prompt in enumerate(tokens):
        if len(prompt) == 0:
            which = "the prompt" if len(prompts) == 1 else f"prompt {number + 1} of {len(prompts)}"
            raise UsageError(f"{which} is empty: give at least one word to go on from.")
    return _as_text(TokenWriter(tokens, model, options, retriever, passages), tokens, model, options)


def _as_text(
    writer: "TokenWriter", prompts: Sequence[IntArray], model: LanguageModel, options: GenerationOptions
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
    """Prompts of token ids (int64, at least one each) that are being written on, a token each at a time.

    Raises UsageError where the document and a stride do not fit into the model's length, or `max_length` is beyond it.
    """

    def __init__(
        self,
        prompts: Sequence[IntArray],
        model: LanguageModel,
        options: GenerationOptions,
        retriever: Retriever | None = None,
        passages: Passages = (),
    ) -> None:
        self._model = model
        self._options = options
        self._retriever = retriever
        self._passages = len(passages)
        self._max_length = length_read(model, options)
        first = first_tokens(model.tokenizer, options.bos)
        self._documents = Documents(passages, model.tokenizer, options.document_tokens, first)
        self._continuations = model.continuations()
        self._going_on = {
            number: _Prompt(without_first(prompt, first), np.random.default_rng(options.seed))
            for number, prompt in enumerate(prompts)
        }
        self._step = 0

    def end(self, number: int) -> None:
        """Write no more after this prompt."""
        self._going_on.pop(number, None)

    def step(self) -> list[tuple[int, GeneratedToken]]:
        """The next token of every prompt that goes on, with the prompt's number; none once all have ended."""
        if self._step == self._options.new_tokens or not self._going_on:
            return []
        if self._step % self._options.stride == 0:
            self._retrieve()
        self._step += 1
        prompts = list(self._going_on.items())
        texts = [text for _, prompt in prompts for text in self._texts(prompt)]
        log_probs_BV = self._continuations.next_log_probs(texts)
        written = []
        for number, prompt in prompts:
            log_probs_KV, log_probs_BV = np.split(log_probs_BV, [len(prompt.passages_K)])
            token = self._write(prompt, log_probs_KV)
            if token.token in self._model.end_tokens:
                self.end(number)
            else:
                written.append((number, token))
        return written or self.step()

    def _retrieve(self) -> None:
        """Choose the documents of every prompt for the stride that follows."""
        if self._retriever is None:
            return
        prompts = list(self._going_on.values())
        queries = [self._model.tokenizer.decode(one.text[-self._options.query_tokens :]) for one in prompts]
        hits = ask(self._retriever, queries, self._options.ensemble.hits, self._passages)
        for row, prompt in enumerate(prompts):
            prompt.read_with(Hits(hits.numbers_QK[[row]], hits.scores_QK[[row]]), self._options.ensemble)

    def _texts(self, prompt: "_Prompt") -> list[IntArray]:
        """What is read: each document and the text, of which the oldest tokens are dropped until both, and the next
        token, fit the model."""
        documents = [self._documents[number] for number in prompt.passages_K.tolist()]
        begins = [max(0, len(document) + len(prompt.text) + 1 - self._max_length) for document in documents]
        return [
            np.concatenate([document, prompt.text[begin:]]) for document, begin in zip(documents, begins, strict=True)
        ]

    def _write(self, prompt: "_Prompt", log_probs_KV: FloatArray) -> GeneratedToken:
        """Draw a token from the average of the documents' distributions, and append it to the text."""
        options = self._options
        log_probs_V = mixture(log_probs_KV, prompt.log_weights_K)
        token = sample(
            log_probs_V,
            prompt.generator,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
        )
        prompt.text = np.append(prompt.text, token)
        posteriors_K = posterior(log_probs_KV[:, [token]], prompt.log_weights_K)[0]
        return GeneratedToken(token, float(log_probs_V[token]), prompt.passages_K, posteriors_K)


def length_read(model: LanguageModel, options: GenerationOptions) -> int:
    """The most tokens that are read at once, the next one included.

    Raises UsageError where the model cannot read as many, or the document and a stride do not fit into them.
    """
    length = model.max_length if options.max_length is None else options.max_length
    check_length(model, length)
    if options.document_tokens + options.stride > length:
        raise UsageError(
            f"`document_tokens` {options.document_tokens} and `stride` {options.stride} do not fit together into "
            f"the model length {length}; lower one of them."
        )
    return length


class _Prompt:
    """A text that is being written, and the documents in front of it, of which there is at least one, if only none."""

    def __init__(self, text: IntArray, generator: np.random.Generator) -> None:
        self.text = text
        self.generator = generator
        self.passages_K: IntArray = np.array([NO_PASSAGE])
        self.log_weights_K: DoubleArray = np.zeros(1)

    def read_with(self, hits: Hits, options: EnsembleOptions) -> None:
        """Put the hits of one query in front, with the weights that their scores give; nothing where there are none."""
        count = max(1, len(hits.of(0)))
        self.passages_K = hits.numbers_QK[0, :count]
        self.log_weights_K = document_log_weights(hits, options)[0, :count]

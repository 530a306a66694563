"""Continuing the prompts of a request: `ralm generate`, told piece by piece.

Works on token ids; knows nothing of HTTP.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from ralm.lm.scoring import Scorer
from ralm.protocols import Reader, Reranker, Tokenizer, WritingModel
from ralm.reading.generate import TokenWriter, pieces_of
from ralm.reading.pieces import GeneratedText, GeneratedToken, StoppedText
from ralm.reading.provenance import gains, without_passages
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from ralm.records import DoubleArray, IntArray
from ralm.serving.errors import RequestError
from ralm.serving.indexes import ReadConfig
from ralm.serving.model import Check, Watched
from ralm.serving.options import Limits, Settings, generation_of
from ralm.serving.prompts import ServedPrompt, check_prompt, read_prompt
from ralm.serving.scoring import ScoredToken, check_scores, score_prompt
from ralm.validation import MAX_SEED

Reason: TypeAlias = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, eq=False)
class Wrote:
    """A piece of the text that continues a prompt; `choice` is its number among all that a request asks for."""

    choice: int
    piece: GeneratedText


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a text: at a stop string or end-of-text token, or after as many `tokens` as were asked for."""

    choice: int
    reason: Reason
    tokens: int


def write(
    prompts: Sequence[IntArray],
    model: WritingModel,
    options: GenerationOptions,
    source: FromRetriever | None = None,
    *,
    reader: Reader | None = None,
    reranker: Reranker | None = None,
    query: str | None = None,
    times: int = 1,
    told_ends: frozenset[int] = frozenset(),
) -> Iterator[Wrote | Ended]:
    """Continue each prompt (int64, not empty) `times` times; choices of one prompt follow each other.

    Each choice is what `generate` gives for it alone: the first of a prompt with the seed of `options`, the others with
    the seeds after it. A text ends after one of `told_ends`, which a model that has no ends writes; such a token has no
    text. Raises what `generate` raises.
    """
    writer = _Counting(TokenWriter(model, options, source, reader=reader, reranker=reranker), told_ends)
    texts = []
    for prompt in prompts:
        for time in range(times):
            writer.add(prompt, query, (options.seed + time) % (MAX_SEED + 1))
            texts.append(StoppedText(prompt, model.tokenizer, options.stop))
    for choice, piece in pieces_of(writer, texts):
        yield Wrote(choice, _without_end(piece, told_ends, model.tokenizer))
    for choice, text in enumerate(texts):
        count = writer.tokens[choice]
        whole = count == options.new_tokens and not text.found and choice not in writer.ended
        yield Ended(choice, "length" if whole else "stop", count)


def _without_end(piece: GeneratedText, ends: frozenset[int], tokenizer: Tokenizer) -> GeneratedText:
    if not piece.tokens or piece.tokens[-1].token not in ends:
        return piece
    end = tokenizer.decode(np.array([piece.tokens[-1].token], dtype=np.int64))
    return replace(piece, text=piece.text.removesuffix(end))


class _Counting:
    """A writer that counts the tokens of each text, and ends it after one of `ends`."""

    def __init__(self, writer: TokenWriter, ends: frozenset[int]) -> None:
        self._writer = writer
        self._ends = ends
        self.tokens: Counter[int] = Counter()
        self.ended: set[int] = set()

    def add(self, prompt: IntArray, query: str | None, seed: int) -> None:
        self._writer.add(prompt, query, seed)

    def step(self) -> list[tuple[int, GeneratedToken]]:
        written = self._writer.step()
        self.tokens.update(number for number, _ in written)
        for number, token in written:
            if token.token in self._ends:
                self.ended.add(number)
                self.end(number)
        return written

    def end(self, number: int) -> None:
        self._writer.end(number)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """What is asked for: each prompt (text or token ids) is continued `times` times by `new_tokens` tokens at most.

    `echo` gives the tokens of the prompts too, scored if `scored`. `likeliest` is how many likely tokens are listed for
    each token. `query` replaces the text as the query. With `gain`, every token has its gain over reading without
    passages. `sampling` holds the options of `ralm.reading.Sampling` and `stop`.
    """

    prompts: Sequence[str | Sequence[int]]
    new_tokens: int
    times: int = 1
    echo: bool = False
    scored: bool = False
    likeliest: int = 0
    query: str | None = None
    gain: bool = False
    sampling: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Began:
    """The prompts are read: the text of each, and how many tokens they have together."""

    texts: tuple[str, ...]
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Echoed:
    """The tokens of a prompt, for one choice."""

    choice: int
    tokens: Sequence[ScoredToken]


@dataclass(frozen=True, slots=True, eq=False)
class Gained:
    """The gain (float64, in nats) of each generated token of a choice."""

    choice: int
    tokens: Sequence[GeneratedToken]
    gain_T: DoubleArray


CompletionEvent: TypeAlias = Began | Echoed | Wrote | Ended | Gained


def completed(
    asked: Completion, model: WritingModel, reads: ReadConfig, limits: Limits, check: Check
) -> Iterator[CompletionEvent]:
    """Do what is asked, event by event.

    Raises RequestError if a prompt is empty, too long or has unknown tokens, or if the model does not tell what is
    asked for; and what `generate` and `evaluate_text` raise.
    """
    watched = Watched(model, check)
    most = limits.prompt_tokens or reads.settings.plan.max_length
    prompts = [read_prompt(given, model, most=most) for given in asked.prompts]
    settings = [prompt.settings(reads.settings) for prompt in prompts]
    for prompt, read_with in zip(prompts, settings, strict=True):
        check_prompt(prompt, asked.new_tokens, limits, read_with.plan.max_length)
    yield Began(tuple(prompt.text for prompt in prompts), sum(len(prompt.tokens) for prompt in prompts))
    if asked.echo:
        yield from _echoed(asked, prompts, watched, reads)
    if asked.new_tokens == 0:
        for choice in range(len(prompts) * asked.times):
            yield Ended(choice, "length", 0)
        return
    # prompts of a request are all text, or all token ids, so that they are read in one way
    told_ends = model.end_tokens if asked.echo else frozenset[int]()
    writing = Watched(model, check, ends=not asked.echo)
    yield from _written(asked, prompts, settings[0], writing, told_ends, reads)


def _echoed(
    asked: Completion, prompts: Sequence[ServedPrompt], model: WritingModel, reads: ReadConfig
) -> Iterator[CompletionEvent]:
    for number, prompt in enumerate(prompts):
        settings = prompt.settings(reads.settings)
        begin = prompt.beginning(settings)
        if asked.scored:
            tokens = score_prompt(
                prompt, begin, model, settings.plan, likeliest=asked.likeliest, gain=asked.gain, **reads.parts
            )
        else:
            tokens = []
        for time in range(asked.times):
            yield Echoed(number * asked.times + time, tokens)


def _written(
    asked: Completion,
    prompts: Sequence[ServedPrompt],
    settings: Settings,
    model: WritingModel,
    ends: frozenset[int],
    reads: ReadConfig,
) -> Iterator[CompletionEvent]:
    """The continuations. Where the prompt is echoed the end of a text is told as a token, since clients of that count
    on one more token than the prompt has."""
    if asked.gain:
        check_scores(model)
    drawn = {**asked.sampling, "likeliest": asked.likeliest}
    options = generation_of(settings, new_tokens=asked.new_tokens, **drawn)
    texts = [prompt.tokens[prompt.beginning(settings) :] for prompt in prompts]
    tokens: dict[int, list[GeneratedToken]] = {}
    how: Any = {"query": asked.query, "times": asked.times, "told_ends": ends, **reads.parts}
    for event in write(texts, model, options, **how):
        if isinstance(event, Wrote):
            tokens.setdefault(event.choice, []).extend(event.piece.tokens)
        yield event
    if not asked.gain:
        return
    scorer = Scorer(model, progress=False)
    for choice, own in tokens.items():
        text = texts[choice // asked.times]
        baseline_T = without_passages(text, own, scorer, options.max_length, options.bos)
        log_probs_T = np.array([token.log_prob for token in own], dtype=np.float32)
        yield Gained(choice, own, gains(log_probs_T, baseline_T))


def check_sources(asked: Completion, settings: Settings) -> None:
    """Raise RequestError if a query or a gain is asked for that would mean nothing."""
    if asked.echo and asked.query is not None:
        raise RequestError(
            "`ralm.query` goes with text that is written: the passages of an echoed prompt are those of its strides.",
            param="ralm.query",
        )
    if asked.gain and settings.index is None:
        raise RequestError("`ralm.gain` is the gain from passages: it goes with an index.", param="ralm.gain")

"""Continuing the prompts of a request: `ralm generate`, told piece by piece.

Works on token ids; knows nothing of HTTP.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from ralm.protocols import Reader, Reranker, Tokenizer, WritingModel
from ralm.reading.generate import TokenWriter, pieces_of
from ralm.reading.pieces import GeneratedText, GeneratedToken, StoppedText
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from ralm.records import IntArray
from ralm.validation import MOST_SEEDS

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
            writer.add(prompt, query, (options.seed + time) % (MOST_SEEDS + 1))
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

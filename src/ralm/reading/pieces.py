"""Generated tokens as text: complete pieces up to a stop string, each with its tokens and the passage it credits."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Self

import numpy as np

from ralm.protocols import Tokenizer
from ralm.reading.mixture import shares
from ralm.records import NO_PASSAGE, Draw, Drawn, FloatArray, IntArray

_DECODED_BEFORE: Final = 8
"""How many tokens of the prompt are decoded with the first piece, so that it joins the prompt as in a whole text."""
_MAX_BYTES: Final = 4
"""The maximum number of bytes, and so of tokens, of a character."""


@dataclass(frozen=True, slots=True, eq=False)
class GeneratedToken:
    """A generated token with its K passages (int64; `NO_PASSAGE` without any) and the shares of its probability.

    `posteriors_K` (float32) sum to 1; NaN if the mixture is no average. `log_prob` is natural, before temperature,
    top-k and top-p; NaN if the model gives text alone. If only top tokens are listed, it is a lower bound, and
    `bound_width` the upper bound less it. `certified`: whether a greedy token is certainly the most likely one.
    """

    token: int
    log_prob: float
    passages_K: IntArray
    posteriors_K: FloatArray
    bound_width: float = 0.0
    certified: bool = True
    top_logprobs: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, drawn: Drawn, draw: Draw, passages_K: IntArray) -> Self:
        """Return a token that was drawn, with the shares of the passages."""
        posteriors_K = np.full(len(passages_K), np.nan if draw.distribution is not None else 1, dtype=np.float32)
        if len(passages_K) > 1 and draw.distribution is None:
            posteriors_K = shares(drawn.log_probs_K[:, None], draw.log_weights_K)[0].astype(np.float32)
        return cls(
            token=drawn.token,
            log_prob=drawn.log_prob,
            passages_K=passages_K,
            posteriors_K=posteriors_K,
            bound_width=drawn.bound_width,
            certified=drawn.certified,
            top_logprobs=drawn.top_logprobs,
        )

    @property
    def is_bounded(self) -> bool:
        """Whether bounds decided the token, or its log-probability is only known within bounds."""
        return self.bound_width > 0 or not self.certified

    @property
    def passage(self) -> int:
        """The passage that contributed most of the token's probability; `NO_PASSAGE` without shares, or if none did."""
        return NO_PASSAGE if np.isnan(self.posteriors_K).any() else int(self.passages_K[self.posteriors_K.argmax()])


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """A piece of generated text and its tokens; `passage` contributed most of its last token's probability."""

    text: str
    passage: int
    tokens: tuple[GeneratedToken, ...] = ()


def spans(pieces: Iterable[GeneratedText]) -> Iterator[GeneratedText]:
    """Yield the same text with neighbouring pieces of one passage joined."""
    for passage, group in groupby(pieces, key=lambda piece: piece.passage):
        run = list(group)
        tokens = tuple(token for piece in run for token in piece.tokens)
        yield GeneratedText(text="".join(piece.text for piece in run), passage=passage, tokens=tokens)


def texts_of_tokens(pieces: Iterable[GeneratedText]) -> tuple[str, list[str]]:
    """Return the text before the first token, and the text that each token adds."""
    before, texts = "", list[str]()
    for piece in pieces:
        if piece.tokens:
            texts += [""] * (len(piece.tokens) - 1) + [piece.text]
        elif texts:
            texts[-1] += piece.text
        else:
            before += piece.text
    return before, texts


def passage_shares(tokens: Sequence[GeneratedToken]) -> dict[int, float]:
    """Return the average share of the tokens' probability that came from each passage, largest first."""
    shares: dict[int, float] = {}
    for token in tokens:
        for passage, share in zip(token.passages_K.tolist(), token.posteriors_K.tolist(), strict=True):
            shares[passage] = shares.get(passage, 0.0) + share / len(tokens)
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


class StoppedText:
    """The text that tokens add to a prompt (int64), in whole characters up to a stop string (`found`)."""

    def __init__(self, prompt: IntArray, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self.found = False
        self._tokenizer = tokenizer
        self._stop = stop
        self._waiting: list[GeneratedText] = []
        self._pending: list[GeneratedToken] = []
        last = prompt[-_DECODED_BEFORE:]
        # after half a character, tokenizers with byte fallback decode none of the bytes that follow
        begins = (last[begin:] for begin in range(min(_MAX_BYTES, len(last))))
        whole = (tail for tail in begins if "\N{REPLACEMENT CHARACTER}" not in tokenizer.decode(tail))
        self._before: list[int] = next(whole, last).tolist()

    def add(self, token: GeneratedToken) -> list[GeneratedText]:
        """Return the pieces that can be passed on after this token, in order."""
        self._pending.append(token)
        text = self._gained()
        incomplete = not text or text.endswith("\N{REPLACEMENT CHARACTER}")
        return [] if incomplete else self.add_pieces([self._take(text)])

    def rest(self) -> list[GeneratedText]:
        """Return the pieces that waited, or were incomplete, until the end."""
        certain = self.add_pieces([self._take(self._gained())] if self._pending else [])
        waiting, self._waiting = self._waiting, []
        return certain + waiting

    def _take(self, text: str) -> GeneratedText:
        piece = GeneratedText(text=text, passage=self._pending[-1].passage, tokens=tuple(self._pending))
        self._before, self._pending = [token.token for token in self._pending], []
        return piece

    def _gained(self) -> str:
        without = self._tokenizer.decode(np.array(self._before, dtype=np.int64))
        all_tokens = self._before + [token.token for token in self._pending]
        return self._tokenizer.decode(np.array(all_tokens, dtype=np.int64))[len(without) :]

    def add_pieces(self, pieces: Sequence[GeneratedText]) -> list[GeneratedText]:
        """Return the pieces that can be passed on after these, in order; nothing after a stop string."""
        certain: list[GeneratedText] = []
        for piece in pieces:
            if self.found:
                break
            text = "".join(piece.text for piece in [*self._waiting, piece])
            ends = [text.index(string) for string in self._stop if string in text]
            self.found = bool(ends)
            overlap = max((_overlap(text, string) for string in self._stop), default=0)
            passed_on, waiting = _split([*self._waiting, piece], min(ends) if ends else len(text) - overlap)
            certain += passed_on
            self._waiting = [] if self.found else waiting
        return certain


def _overlap(text: str, string: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `string`."""
    return next((n for n in range(min(len(text), len(string) - 1), 0, -1) if text.endswith(string[:n])), 0)


def _split(pieces: Sequence[GeneratedText], length: int) -> tuple[list[GeneratedText], list[GeneratedText]]:
    """Return the first `length` characters of the pieces, and the rest; the tokens of a cut piece go with the first."""
    first, rest = [], []
    for piece in pieces:
        if length >= len(piece.text):
            first.append(piece)
        elif length > 0:
            first.append(GeneratedText(text=piece.text[:length], passage=piece.passage, tokens=piece.tokens))
            rest.append(GeneratedText(text=piece.text[length:], passage=piece.passage))
        else:
            rest.append(piece)
        length -= len(piece.text)
    return first, rest

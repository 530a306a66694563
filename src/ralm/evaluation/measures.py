"""Token perplexity, word perplexity, bits per byte: three views of one total negative log-likelihood."""

import math
from dataclasses import dataclass

from ralm.pipeline.texts import PreparedText
from ralm.records import ScoredTokens


@dataclass(frozen=True, slots=True)
class Measures:
    """How well a text was predicted: its tokens, words and UTF-8 bytes, and `nll` in nats over all its targets.

    `unknown_tokens` counts the tokens that stand for something the tokenizer does not know; their text was not
    predicted. Perplexities divide by the counts; `ralm.reading.plan` says what counts under each semantics.
    """

    tokens: int
    words: int
    bytes: int
    nll: float
    unknown_tokens: int = 0

    @property
    def token_perplexity(self) -> float:
        """exp(nll / tokens)."""
        return _perplexity(self.nll, self.tokens)

    @property
    def word_perplexity(self) -> float:
        """exp(nll / words): comparable between tokenizers, as in the papers' WikiText-103 figures."""
        return _perplexity(self.nll, self.words)

    @property
    def bits_per_byte(self) -> float:
        """nll in bits over the UTF-8 bytes of the text."""
        return self.nll / math.log(2) / self.bytes if self.bytes else math.nan

    def as_dict(self) -> dict[str, float]:
        """Counts and measures by name."""
        return {
            "tokens": self.tokens,
            "words": self.words,
            "bytes": self.bytes,
            "nll": self.nll,
            "unknown_tokens": self.unknown_tokens,
            "token_perplexity": self.token_perplexity,
            "word_perplexity": self.word_perplexity,
            "bits_per_byte": self.bits_per_byte,
        }


def measure(prepared: PreparedText, scored: ScoredTokens) -> Measures:
    """The measures of a scored text, normalised according to the semantics of its plan."""
    return Measures(
        tokens=prepared.plan.counted_tokens,
        words=prepared.plan.count_words(prepared.text),
        bytes=len(prepared.text.encode()),
        nll=scored.nll,
        unknown_tokens=prepared.unknown_tokens,
    )


def _perplexity(nll: float, count: int) -> float:
    """exp(nll / count); infinity if that is too large for a float, NaN if `count` is 0."""
    if count == 0:
        return math.nan
    try:
        return math.exp(nll / count)
    except OverflowError:
        return math.inf

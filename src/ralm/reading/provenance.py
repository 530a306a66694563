"""The gain from retrieval, token by token and passage by passage, in nats; and the data behind reports of it.

For a target y_t, read after [d; x] with documents and after x without:

    gain_t         = log p(y_t | with documents) - log p(y_t | x)
    contribution_td = posterior_td gain_t,     posterior_td = lambda_d p(y_t | [d; x]) / sum over d' of the same

The posteriors of a target sum to 1 (in the mixture of REPLUG, Eq. 2; with one document it is 1), so its contributions
sum to its gain, and those of all passages to the gain of the text. The gain of a target that is read without a document
or has no shares belongs to no passage. All sums are float64. Letters of shapes: T targets, K documents of a target.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Self

import numpy as np
from pydantic import JsonValue

from ralm.lm.scoring import Scorer
from ralm.protocols import LanguageModel
from ralm.reading.pieces import GeneratedText, GeneratedToken, texts_of_tokens
from ralm.reading.plan import Bos
from ralm.reading.tokens import PreparedText, first_tokens, without_first
from ralm.records import (
    NO_PASSAGE,
    DoubleArray,
    FloatArray,
    IntArray,
    Passage,
    Passages,
    Provenance,
    Request,
    ScoredTokens,
)

_TOP_PASSAGES: Final = 10


@dataclass(frozen=True, slots=True)
class Contribution:
    """The part of one passage in the gain of a text, in nats, and the targets that it led, `helped` and `hurt`."""

    passage: int
    gain: float
    tokens: int
    helped: int
    hurt: int


@dataclass(frozen=True, slots=True)
class Gain:
    """The gain for a text in nats, of which `unattributed` belongs to predictions without a document or shares."""

    nats: float
    targets: int
    helped: int
    hurt: int
    unattributed: float

    @property
    def per_token(self) -> float:
        """Nats per target; NaN without targets."""
        return self.nats / self.targets if self.targets else float("nan")

    def as_dict(self) -> dict[str, JsonValue]:
        """Return the fields by name."""
        return {"nats": self.nats, "per_token": self.per_token, **asdict(self)}


def gains(log_probs_T: FloatArray, baseline_T: FloatArray) -> DoubleArray:
    """Return the gain (float64, T) of each target: its log-probability with documents less that without, in nats."""
    return log_probs_T.astype(np.float64) - baseline_T.astype(np.float64)


def attributed(provenance: Provenance, gain_T: DoubleArray) -> DoubleArray:
    """Return the part of each target's gain (float64, T x K) that each document contributed; 0 without shares."""
    posteriors_TK = np.where(provenance.shared_T[:, None], provenance.posteriors_TK, 0).astype(np.float64)
    total_T1 = posteriors_TK.sum(axis=1, keepdims=True)
    return gain_T[:, None] * posteriors_TK / np.where(provenance.shared_T[:, None], total_T1, 1)


def total_gain(provenance: Provenance, gain_T: DoubleArray) -> Gain:
    """Return the gain of all targets together."""
    without_TK = (provenance.passages_TK == NO_PASSAGE) & (provenance.posteriors_TK > 0)
    without_T = np.where(without_TK, attributed(provenance, gain_T), 0.0).sum(axis=1)
    return Gain(
        nats=float(gain_T.sum()),
        targets=len(gain_T),
        helped=int((gain_T > 0).sum()),
        hurt=int((gain_T < 0).sum()),
        unattributed=float(without_T[without_TK.any(axis=1)].sum() + gain_T[~provenance.shared_T].sum()),
    )


def contributions(provenance: Provenance, gain_T: DoubleArray) -> list[Contribution]:
    """Return the contribution of each passage that has shares: largest gain first, equal gains by number."""
    read_TK = (provenance.passages_TK != NO_PASSAGE) & provenance.shared_T[:, None]
    numbers, places = np.unique(provenance.passages_TK[read_TK], return_inverse=True)
    gain = np.bincount(places, weights=attributed(provenance, gain_T)[read_TK], minlength=len(numbers))
    passages_T = provenance.passages_T
    led_T = np.where(passages_T == NO_PASSAGE, len(numbers), np.searchsorted(numbers, passages_T))
    led = [
        np.bincount(led_T[chosen_T], minlength=len(numbers) + 1)[:-1].tolist()
        for chosen_T in (np.ones(len(gain_T), dtype=np.bool_), gain_T > 0, gain_T < 0)
    ]
    rows = map(Contribution, numbers.tolist(), gain.tolist(), *led)
    return sorted(rows, key=lambda row: (-row.gain, row.passage))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TracedText:
    """T tokens in order: the text and the log-probability of each, with and without (`baseline_T`) the `passages`."""

    before: str
    texts: Sequence[str]
    log_probs_T: FloatArray
    baseline_T: FloatArray
    provenance: Provenance
    passages: Mapping[int, Passage]

    def __post_init__(self) -> None:
        assert len(self.texts) == len(self.log_probs_T) == len(self.baseline_T) == len(self.provenance.passages_TK)

    @classmethod
    def of(cls, prepared: PreparedText, scored: ScoredTokens, baseline: ScoredTokens, passages: Passages) -> Self:
        """Return a text that was scored with passages, and without them as the baseline."""
        before, texts = prepared.token_texts(scored.positions_T)
        return cls(
            before=before,
            texts=texts,
            log_probs_T=scored.log_probs_T,
            baseline_T=baseline.log_probs_T,
            provenance=scored.provenance,
            passages=used_passages(scored.provenance, passages),
        )

    @classmethod
    def of_tokens(
        cls,
        before: str,
        texts: Sequence[str],
        tokens: Sequence[GeneratedToken],
        baseline_T: FloatArray,
        passages: Passages,
    ) -> Self:
        """Return generated tokens and their texts, with their log-probabilities without passages as the baseline."""
        provenance = Provenance.of_rows([(token.passages_K, token.posteriors_K) for token in tokens])
        return cls(
            before=before,
            texts=texts,
            log_probs_T=np.array([token.log_prob for token in tokens], dtype=np.float32),
            baseline_T=baseline_T,
            provenance=provenance,
            passages=used_passages(provenance, passages),
        )

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def gain_T(self) -> DoubleArray:
        """The gain of each token from documents (float64), in nats."""
        return gains(self.log_probs_T, self.baseline_T)

    @property
    def gain(self) -> Gain:
        """The gain of the whole text from documents."""
        return total_gain(self.provenance, self.gain_T)

    @property
    def contributions(self) -> list[Contribution]:
        """The contribution of each passage, largest gain first."""
        return contributions(self.provenance, self.gain_T)


def used_passages(provenance: Provenance, passages: Passages) -> dict[int, Passage]:
    """Return the passages that were read, by number, in ascending order."""
    numbers = np.unique(provenance.passages_TK).tolist()
    return {number: passages[number] for number in numbers if number != NO_PASSAGE}


def gain_as_json(traced: TracedText) -> dict[str, JsonValue]:
    """Return the gain of a text in nats, in total and per token, and the passages that contributed most."""
    best = traced.contributions[:_TOP_PASSAGES]
    return {**traced.gain.as_dict(), "passages": [contribution_as_json(row, traced.passages) for row in best]}


def contribution_as_json(row: Contribution, passages: Mapping[int, Passage]) -> dict[str, JsonValue]:
    """Return the passage of a contribution, and the contribution."""
    values = asdict(row)
    return passage_as_json(passages[values.pop("passage")]) | values


def token_as_json(
    token: int, text: str, log_prob: float | None, passages_K: IntArray, posteriors_K: FloatArray
) -> dict[str, JsonValue]:
    """Return a token with its log-probability, its passages, and the share of the probability from each."""
    return {
        "token": token,
        "text": text,
        "log_prob": log_prob,
        "passages": [None if number == NO_PASSAGE else number for number in passages_K.tolist()],
        "posteriors": [None if np.isnan(share) else share for share in posteriors_K.tolist()],
    }


def hits_as_json(
    hits: Iterable[tuple[Passage, float]], marks: Iterable[Iterable[tuple[int, int]]] = ()
) -> list[JsonValue]:
    """Return passages with their scores; `marks` are the marked characters of each, if known."""
    rows: list[dict[str, JsonValue]] = [
        {"passage": passage.number, "score": round(score, 4), **passage_as_json(passage), "text": passage.text}
        for passage, score in hits
    ]
    for hit, spans in zip(rows, marks, strict=False):
        hit["marks"] = [[*span] for span in spans]
    return [*rows]


def passage_as_json(passage: Passage) -> dict[str, JsonValue]:
    """Return a passage's number, document, title and metadata."""
    return {
        "passage": passage.number,
        "document_id": passage.document_id,
        "title": passage.title,
        "metadata": dict(passage.metadata),
    }


def traced_generation(
    prompt: str,
    pieces: Sequence[GeneratedText],
    model: LanguageModel,
    passages: Passages = (),
    max_length: int | None = None,
    bos: Bos = "auto",
) -> TracedText:
    """Return a prompt and its generated text, each token with its gain over the same text without passages."""
    tokens = [token for piece in pieces for token in piece.tokens]
    before, texts = texts_of_tokens(pieces)
    baseline_T = without_passages(model.tokenizer.encode(prompt), tokens, model, max_length, bos)
    return TracedText.of_tokens(prompt + before, texts, tokens, baseline_T, passages)


def without_passages(
    prompt: IntArray,
    tokens: Sequence[GeneratedToken],
    model: LanguageModel,
    max_length: int | None = None,
    bos: Bos = "auto",
) -> FloatArray:
    """Return the log-probability (float32, T) of each generated token, read as in generation without passages."""
    max_length = max_length or model.max_length
    first = first_tokens(model.tokenizer, bos)
    begin = without_first(prompt, first)
    text = np.concatenate([begin, np.array([token.token for token in tokens], dtype=np.int64)])
    requests = [
        Request(first, text[max(0, len(first) + place + 1 - max_length) : place], text[place : place + 1])
        for place in range(len(begin), len(text))
    ]
    return np.concatenate([np.zeros(0, dtype=np.float32), *Scorer.of(model).log_probs(requests)])

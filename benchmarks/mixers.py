"""What the mixers of an ensemble gain, over no passage and over similarity weights at their best temperature.

    python -m benchmarks.mixers TEXT INDEX [--lm ralm-tiny] [--stride 4] [--limit-tokens N] [--retriever random]
        [--documents 10 (2 or more)] [--rows GLOB] [--small]

Reads the text with a retriever's `--documents` passages, ten by default, once for all mixers that look at log-
probabilities alone: similarity weights are posterior weights with `eta` 0. The nats a token that each gains over no
passage have 95% intervals of a paired bootstrap over the documents of the text, and so has the difference to similarity
weights at the temperature that is best on this very text. `permuted` gives each passage the evidence of another one:
what it gains is not due to the evidence. `--rows` selects rows beside similarity weights. `--small` reads windows of
224 tokens and passages of 80, as the small scale of `benchmarks.real_rows` does.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

import ralm
from benchmarks.held_out_texts import DOCUMENT
from ralm.evaluation.bootstrap import bootstrap_means, interval, sums_of_units
from ralm.records import DoubleArray, FloatArray, IntArray
from ralm.retrieval.retriever import RetrieverName

TEMPERATURES = (1.0, 2.0, 4.0, 8.0)
NONE_SCORES = (0.0, 5.0, 10.0)
ENTROPY_TEMPERATURES = (0.1, 0.5, 1.0)
LOOKING: tuple[ralm.Contrast | ralm.AdaptiveContrast | ralm.Backoff, ...] = (
    *(ralm.Contrast(alpha=alpha) for alpha in (0.1, 0.25, 0.5)),
    ralm.AdaptiveContrast(),
    ralm.AdaptiveContrast(floor=0.3),
    *(ralm.Backoff(margin=margin) for margin in (0.0, 0.1)),
)
"""Mixers that look at whole distributions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permuted:
    """Posterior weights by the evidence of the next passage."""

    posterior: ralm.PosteriorWeights

    @property
    def config(self) -> dict[str, str]:
        """The name."""
        return {"mixer": "permuted"}

    @property
    def needs(self) -> ralm.MixerNeeds:
        """The evidence."""
        return self.posterior.needs

    def log_weights(self, given: ralm.Predictions) -> DoubleArray:
        """The weights by wrong evidence."""
        return self.posterior.log_weights(replace(given, evidence_TKE=np.roll(given.evidence_TKE, 1, axis=1)))


def readers() -> Iterator[tuple[str, ralm.Reader]]:
    """The readers, by name; similarity weights first."""
    for temperature in TEMPERATURES:
        similarity = ralm.PosteriorWeights(eta=0)
        yield f"similarity {temperature:g}", ralm.Ensemble(temperature=temperature, mixer=similarity)
    yield "one passage", ralm.InContext()
    for temperature in TEMPERATURES:
        yield (
            f"posterior, temperature {temperature:g}",
            ralm.Ensemble(temperature=temperature, mixer=ralm.PosteriorWeights()),
        )
    for eta, decay in ((0.4, 8.0), (1.0, 8.0), (0.7, 4.0), (0.7, 16.0)):
        mixer = ralm.PosteriorWeights(eta=eta, decay=decay)
        yield f"posterior, temperature 4, eta {eta}, decay {decay:g}", ralm.Ensemble(temperature=4, mixer=mixer)
    yield "posterior, uniform start", ralm.Ensemble(mixer=ralm.PosteriorWeights(start="uniform"))
    yield "permuted, temperature 4", ralm.Ensemble(temperature=4, mixer=Permuted(posterior=ralm.PosteriorWeights()))
    yield "uniform", ralm.Ensemble(mixer=ralm.PosteriorWeights(eta=0, start="uniform"))
    for score in NONE_SCORES:
        yield f"prior, none score {score:g}", ralm.Ensemble(mixer=ralm.PriorWeights(none_score=score))
    for temperature in ENTROPY_TEMPERATURES:
        mixed = ralm.EntropyWeights(temperature=temperature)
        yield f"entropy, temperature {temperature:g}", ralm.Ensemble(mixer=mixed)
    for looking in LOOKING:
        options = ", ".join(f"{name} {value}" for name, value in looking.config.items() if name != "mixer")
        yield f"{looking.config['mixer']}, {options}, temperature 4", ralm.Ensemble(temperature=4, mixer=looking)


def documents_of(evaluation: ralm.Evaluation) -> IntArray:
    """The number of the document (int64, T) that each target belongs to."""
    before, texts = evaluation.prepared.token_texts(evaluation.reading.scored.positions_T)
    starts = [match.start() for match in re.finditer(DOCUMENT, before + "".join(texts), re.MULTILINE)]
    ends_T = len(before) + np.cumsum([len(text) for text in texts])
    return np.unique(np.searchsorted(starts, ends_T - 1, side="right"), return_inverse=True)[1].astype(np.int64)


def nats(gains_TR: FloatArray, document_T: IntArray) -> tuple[DoubleArray, DoubleArray]:
    """The mean gain of each of R readings over targets, and its draws (D x R)."""
    draws_DR = bootstrap_means(sums_of_units(gains_TR, document_T), np.bincount(document_T))
    return gains_TR.mean(axis=0, dtype=np.float64), draws_DR


def main(
    text: Path,
    index: Path,
    lm: str,
    plan: ralm.PlanOptions,
    limit: int | None,
    retriever: RetrieverName,
    chosen: Sequence[tuple[str, ralm.Reader]],
) -> None:
    """Print the table of one text."""
    scorer = ralm.Scorer(ralm.load_language_model(lm))
    opened = ralm.open_index(index)
    finds = ralm.open_retriever(opened, ralm.RetrieverOptions(retriever=retriever))
    source = ralm.FromRetriever(finds, opened.passages, config={})
    names, gains, first = [], [], None
    for name, reader in chosen:
        read = ralm.evaluate_text(
            text.read_text(), scorer, plan, source=source, reader=reader, limit_tokens=limit, baseline=True
        )
        first = first or read
        assert read.baseline is not None
        names.append(name)
        gains.append(read.reading.scored.log_probs_T - read.baseline.scored.log_probs_T)
    assert first is not None
    assert first.baseline is not None
    means_R, draws_DR = nats(np.stack(gains, axis=1), documents_of(first))
    best = int(means_R[: len(TEMPERATURES)].argmax())
    none = first.baseline.measures.token_perplexity
    print(f"{text.name}, {retriever}: {len(first.reading.scored):,} targets; no passage: perplexity {none:.2f}")
    print("| mixer | perplexity | gain in nats | over the best similarity weights | times their gain |")
    print("|---|---|---|---|---|")
    for row, name in enumerate(names):
        low, high = interval(draws_DR[:, row])
        over_low, over_high = interval(draws_DR[:, row] - draws_DR[:, best])
        over = means_R[row] - means_R[best]
        print(
            f"| {name} | {none / np.exp(means_R[row]):.2f} | {means_R[row]:.4f} ({low:.4f}, {high:.4f}) | "
            f"{over:+.4f} ({over_low:+.4f}, {over_high:+.4f}) | {means_R[row] / means_R[best]:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("index", type=Path)
    parser.add_argument("--lm", default="ralm-tiny")
    parser.add_argument("--stride", type=int, default=4)
    parser.add_argument("--limit-tokens", type=int)
    parser.add_argument("--retriever", choices=("bm25", "random"), default="bm25")
    parser.add_argument("--documents", type=int, default=10)
    parser.add_argument("--rows", default="*")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    plan = ralm.PlanOptions(stride=given.stride, windows="blocked", max_length=768)
    if given.small:
        plan = replace(plan, max_length=224, document_tokens=80, block=32)
    chosen = [
        (name, replace(reader, documents=given.documents) if isinstance(reader, ralm.Ensemble) else reader)
        for name, reader in readers()
        if name.startswith("similarity") or fnmatch(name, given.rows)
    ]
    main(given.text, given.index, given.lm, plan, given.limit_tokens, given.retriever, chosen)

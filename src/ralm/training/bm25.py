"""LM-supervised BM25: weights of query terms, learned so that BM25's first passage is the one that the LM wants.

In three steps:

1. The shape: one real weight for each group of terms (`weighting.TERM_GROUPS`), fitted to the candidates of the signals
   with In-Context RALM, Eq. 9.
2. The strength: the shape raised to several powers and rounded, so that the heaviest term weighs 1, 2, 3 or 4. Each
   retrieves the first passage of every training example from the whole index, and the language model scores those that
   are not among the candidates. This is needed because weights also bring up passages that the signals do not have.
3. The test: the best ones retrieve for the held-out examples. If they do not gain there, the result is plain BM25.

Letters of shapes: E examples, K candidates, G groups of terms.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.lm.scoring import Scorer
from ralm.protocols import LanguageModel, Retriever
from ralm.reading.tokens import PassageDocuments
from ralm.records import NO_PASSAGE, DoubleArray, IntArray
from ralm.retrieval.analysis import ENGLISH, Analyser
from ralm.retrieval.bm25.formula import MAX_WEIGHT, TERM_GROUPS, WEIGHTING_KIND, Weighting
from ralm.retrieval.index import Index
from ralm.runs import resume, run
from ralm.storage import manifest, outputs
from ralm.terminal import track
from ralm.training.candidates import find_candidates, score_candidates
from ralm.training.examples import from_table
from ralm.training.fitting import usable_examples
from ralm.training.options import CandidateOptions, WeightingOptions
from ralm.training.signals import WHERE, Signals, index_of, open_signals, softmax
from ralm.validation import config_of

_FLAT: Final = 1e-3
_STEPS: Final = 300
_RATE: Final = 0.05
_BETAS: Final = (0.9, 0.999)
_TINY: Final = 1e-8
_PASSAGES_KEPT: Final = 4096
_RESAMPLES: Final = 2000
_INSIDE: Final = (2.5, 97.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedWeights:
    """Some weights, and what the first passage gains with them on the training examples, in nats per token over reading
    no passage."""

    weights: tuple[int, ...]
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedWeighting:
    """The `weighting` that was learned, and how it was chosen. Gains are in nats per token.

    `shape`: the fitted weights, the lowest of them 1. `tried`: weights on the `examples` training examples, plain BM25
    first. `best`: those of `tried` that gain most. On the `held_out` examples, `plain` is the gain of BM25 over reading
    no passage, `gain` what `best` gains over BM25, and `interval` its 95% interval by bootstrap over documents. If
    `gain` is not positive, `weighting` is plain.
    """

    weighting: Weighting
    shape: tuple[float, ...]
    tried: Sequence[TriedWeights]
    best: tuple[int, ...]
    examples: int
    held_out: int
    plain: float
    gain: float
    interval: tuple[float, float]

    def as_json(self) -> dict[str, JsonValue]:
        """For a manifest."""
        results: dict[str, JsonValue] = json.loads(json.dumps(asdict(self)))
        return results


def train_bm25(
    signals: Signals | Path | str,
    model: LanguageModel,
    out: Path | str,
    options: WeightingOptions | None = None,
    *,
    index: Index | Path | str | None = None,
    force: bool = False,
) -> LearnedWeighting:
    """Learn weights of query terms from signals, and write the folder `out`.

    `model` and `index` are those that the signals were measured with; without an index, the one that they name. If this
    is killed, call it again with the same arguments: what the model has scored is kept. Raises UsageError if the
    signals are of another index or language model, or have too few examples that can be used, FolderExistsError if
    `out` exists and `force` is not set, and what `open_signals`, `Index.bm25` and the model raise.
    """
    options = options or WeightingOptions()
    outputs.check_output(Path(out), kind=WEIGHTING_KIND, force=force)
    signals = signals if isinstance(signals, Signals) else open_signals(signals)
    index = index_of(signals, index)
    _check_model(signals, model)
    training_E, held_out_E = usable_examples(signals, options)
    config: dict[str, JsonValue] = {
        "signals": signals.fingerprint,
        "index": index.fingerprint,
        "retriever": index.bm25.config,
        "model": config_of(model, "language model"),
        "options": asdict(options),
    }
    shape_G = _fitted_shape(signals, index, training_E)
    with resume.resumable_scorers(out, config, [model], force=force) as scorers:
        firsts = _Firsts(signals, index, scorers[id(model)])
        learned = _choose_strength(firsts, shape_G, training_E, held_out_E, options.seed)
        settings = {**learned.weighting.as_settings(), "config": config, "results": learned.as_json()}
        with outputs.new_folder(Path(out), kind=WEIGHTING_KIND, force=force) as folder:
            manifest.write_manifest(
                folder,
                kind=WEIGHTING_KIND,
                settings={**settings, "environment": run.environment()},
                counts={"examples": learned.examples + learned.held_out},
            )
    return learned


def _check_model(signals: Signals, model: LanguageModel) -> None:
    """Raise UsageError if signals were measured with another language model."""
    measured_with: Any = signals.config.get("model") or {}
    own = config_of(model, "language model")
    differ = [name for name in {**measured_with, **own} if measured_with.get(name) != own.get(name)]
    if differ := [name for name in differ if name not in WHERE]:
        raise UsageError(
            f"the signals in {signals.description} were measured with {measured_with.get('name')}, and {model.name} "
            f"differs from it in {', '.join(sorted(differ))}: give the language model that they were measured with."
        )


def fit_shape(parts_EKG: DoubleArray, log_probs_EK: DoubleArray, there_EK: NDArray[np.bool_]) -> DoubleArray:
    """The positive weights (float64, G) that minimise the mean of Eq. 9 over examples.

    The score of a candidate is the weighted sum of its parts: what the terms of each group add to its BM25 score.
    """
    parts_EKG = np.where(there_EK[:, :, None], parts_EKG, 0)
    log_probs_EK = np.where(there_EK, log_probs_EK, -np.inf)
    logs_G, mean_G, square_G = np.zeros((3, parts_EKG.shape[2]))
    for step in range(1, _STEPS + 1):  # Adam
        weights_G = np.exp(logs_G)
        scores_EK = np.where(there_EK, parts_EKG @ weights_G, -np.inf)
        apart_EK = softmax(scores_EK) - softmax(scores_EK + log_probs_EK)  # the gradient of Eq. 9
        gradient_G = np.einsum("ek,ekg->g", apart_EK, parts_EKG) * weights_G / len(parts_EKG)
        mean_G = mean_G + (1 - _BETAS[0]) * (gradient_G - mean_G)
        square_G = square_G + (1 - _BETAS[1]) * (gradient_G**2 - square_G)
        rate = _RATE * np.sqrt(1 - _BETAS[1] ** step) / (1 - _BETAS[0] ** step)
        logs_G = logs_G - rate * mean_G / (np.sqrt(square_G) + _TINY)
    return np.exp(logs_G)


def weights_of(shape_G: DoubleArray, heaviest: int) -> tuple[int, ...]:
    """The shape raised to the power that makes its highest weight `heaviest` and its lowest 1, in whole numbers; all 1
    if the shape is flat."""
    logs_G = np.log(shape_G / shape_G.min())
    if logs_G.max() < _FLAT:
        return (1,) * len(shape_G)
    return tuple(int(one) for one in np.rint(heaviest ** (logs_G / logs_G.max())))


def _fitted_shape(signals: Signals, index: Index, training_E: IntArray) -> DoubleArray:
    """The shape that fits the candidates of the training examples; flat if no example has two candidates."""
    several_E = training_E[signals.has_choice_E[training_E]]
    if not len(several_E):
        return np.ones(len(TERM_GROUPS))
    there_EK = signals.passages_EK[several_E] != NO_PASSAGE
    return fit_shape(_parts(signals, index, several_E), signals.log_probs_EK[several_E], there_EK)


def _parts(signals: Signals, index: Index, examples_E: IntArray) -> DoubleArray:
    """What the terms of each group add to the BM25 scores of the candidates of examples (float64, E x K x G)."""
    bm25, analyse = index.bm25, Analyser(index.analysis or ENGLISH)
    queries = signals.texts("query").take(examples_E).to_pylist()
    words_of = lru_cache(_PASSAGES_KEPT)(lambda number: analyse(index.passages[number].contents))
    parts_EKG = np.zeros((len(examples_E), signals.passages_EK.shape[1], len(TERM_GROUPS)))
    rows = zip(queries, signals.passages_EK[examples_E].tolist(), parts_EKG, strict=True)
    for query, numbers, parts_KG in track(rows, "Reading candidates", len(examples_E)):
        words = analyse(query)
        after = np.arange(len(words))[::-1]
        group = np.searchsorted(TERM_GROUPS, after, side="right") - 1
        for place, number in enumerate(numbers):
            if number != NO_PASSAGE:
                added = bm25.term_scores(words, words_of(number))
                parts_KG[place] = np.bincount(group, added, minlength=len(TERM_GROUPS))
    return parts_EKG


class _Firsts:
    """What the first passage of a retriever gains for examples; nothing is scored that signals have or that was scored
    before."""

    def __init__(self, signals: Signals, index: Index, scorer: Scorer) -> None:
        self.signals = signals
        self.index = index
        self._scorer = scorer
        self._examples = signals.table("document_id", "begin", "query", "prefix_tokens", "continuation_tokens", "runs")
        recorded: Any = signals.config.get("candidates") or {}
        reading = CandidateOptions(**recorded)
        self._exclude = reading.exclude
        self._documents = PassageDocuments(index.passages, scorer.tokenizer, reading.document_tokens, reading.bos)

    def gains(self, retriever: Retriever, examples_E: IntArray) -> DoubleArray:
        """For each example, the log-probability of its continuation after the first passage, less that without a
        passage (float64)."""
        signals, table = self.signals, self._examples.take(examples_E)
        examples, queries = from_table(table), table["query"].to_pylist()
        hits = find_candidates(examples, queries, retriever, self.index.passages, 1, exclude=self._exclude)
        first_E = hits.numbers_QK[:, 0]
        same_EK = (signals.passages_EK[examples_E] == first_E[:, None]) & (first_E != NO_PASSAGE)[:, None]
        log_probs_E = signals.baseline_E[examples_E].copy()
        rows, columns = np.nonzero(same_EK)
        log_probs_E[rows] = signals.log_probs_EK[examples_E[rows], columns]
        new = np.flatnonzero(~same_EK.any(axis=1) & (first_E != NO_PASSAGE)).tolist()
        numbers_of = [[int(first_E[row])] for row in new]
        scored = score_candidates([examples[row] for row in new], numbers_of, self._documents, self._scorer)
        log_probs_E[new] = [float(one.astype(np.float64).sum()) for (one,) in scored]
        return log_probs_E - signals.baseline_E[examples_E]


def _choose_strength(
    firsts: _Firsts, shape_G: DoubleArray, training_E: IntArray, held_out_E: IntArray, seed: int
) -> LearnedWeighting:
    """Find the strength on the training examples, and test it on the held-out ones."""
    signals, bm25 = firsts.signals, firsts.index.bm25
    distinct = dict.fromkeys(weights_of(shape_G, heaviest) for heaviest in range(1, MAX_WEIGHT + 1))
    tokens = float(signals.tokens_E[training_E].sum())
    tried = []
    for weights in distinct:
        gains_E = firsts.gains(bm25.weighted(Weighting(weights)), training_E)
        tried.append(TriedWeights(weights=weights, gain=float(gains_E.sum() / tokens)))
    best = max(tried, key=lambda one: one.gain).weights
    plain_E = firsts.gains(bm25, held_out_E)
    more_E = firsts.gains(bm25.weighted(Weighting(best)), held_out_E) - plain_E
    tokens_E = signals.tokens_E[held_out_E]
    gain = float(more_E.sum() / tokens_E.sum())
    chosen = best if gain > 0 else (1,) * len(TERM_GROUPS)
    return LearnedWeighting(
        weighting=Weighting(chosen, (firsts.index.analysis or ENGLISH).recorded),
        shape=tuple((shape_G / shape_G.min()).tolist()),
        tried=tried,
        best=best,
        examples=len(training_E),
        held_out=len(held_out_E),
        plain=float(plain_E.sum() / tokens_E.sum()),
        gain=gain,
        interval=_interval([signals.documents_E[i] for i in held_out_E.tolist()], more_E, tokens_E, seed),
    )


def _interval(documents_E: Sequence[str], gains_E: DoubleArray, tokens_E: IntArray, seed: int) -> tuple[float, float]:
    """The 95% interval of the gain per token, by bootstrap over documents."""
    _, document_E = np.unique(np.array(documents_E), return_inverse=True)
    gain_D, tokens_D = np.bincount(document_E, gains_E), np.bincount(document_E, tokens_E)
    random = np.random.default_rng(seed)
    drawn = [random.integers(0, len(gain_D), len(gain_D)) for _ in range(_RESAMPLES)]
    low, high = np.percentile([gain_D[some].sum() / tokens_D[some].sum() for some in drawn], _INSIDE)
    return float(low), float(high)

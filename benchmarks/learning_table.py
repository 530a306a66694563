"""What choosing among BM25's candidates gains: zero-shot, lexical, and the bounds, on signals of held-out texts.

    python -m benchmarks.learning_table HELD_OUT TRAINING...

HELD_OUT and each TRAINING are folders of `ralm signals` with the same model and number of candidates, of different
documents, perhaps of different indexes. Weights are fitted to all TRAINING together. Prints, for HELD_OUT, the nats a
token that each choice gains over BM25's first passage, with the 95% interval of a paired bootstrap over documents, the
perplexity that it changes, and the microseconds of processor time that its lexical features cost a candidate.
`attainable` is the choice by the first half of each continuation, read on the second half, as a share of the best
choice there.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import ralm
from ralm.records import DoubleArray
from ralm.reranking.lexical import BUILT_IN, LexicalWeights
from ralm.training.fitting import held_out_gains
from ralm.training.lexical import features_of, fit_lexical
from ralm.training.signals import Signals, index_of

PAPER_TOKENS = 16


def end_likelihoods(signals: Signals, tokens: int) -> DoubleArray:
    """The log-probability (E x K) of the last `tokens` tokens of each prefix after each candidate."""
    table = signals.candidates(np.arange(len(signals)))
    table = table.filter(table["passage"].is_valid())
    totals_EK, column = np.full(signals.passages_EK.shape, -np.inf), [0] * len(signals)
    for example, before in zip(table["example"].to_pylist(), table["before"].to_pylist(), strict=True):
        totals_EK[example, column[example]] = sum(before[-tokens:])
        column[example] += 1
    return totals_EK


def fitted(training: Sequence[Signals], *, likelihood: bool) -> LexicalWeights:
    """The weights that fit the usable examples of all signals best."""
    used = [(one, np.flatnonzero(one.is_possible_E)) for one in training]
    features = [features_of(one, index_of(one, None), used_E, likelihood=likelihood) for one, used_E in used]
    return fit_lexical(np.concatenate(features), np.concatenate([one.log_probs_EK[used_E] for one, used_E in used]))


def main(held_out: Path, training: Sequence[Path]) -> None:
    tested, fitted_to = ralm.open_signals(held_out), [ralm.open_signals(one) for one in training]
    opened = index_of(tested, None)
    learned = {
        f"lexical{' with likelihood' if likelihood else ''}, fitted": fitted(fitted_to, likelihood=likelihood)
        for likelihood in (False, True)
    }
    tested_E = np.flatnonzero(tested.is_possible_E & tested.has_choice_E)
    began = time.process_time()
    features_EKF = features_of(tested, opened, tested_E, likelihood=False)
    cost = (time.process_time() - began) / np.isfinite(tested.log_probs_EK[tested_E]).sum() * 1e6
    features_EKF = features_of(tested, opened, tested_E, likelihood=True)
    log_probs_EK = tested.log_probs_EK[tested_E]
    likelihoods_EK = end_likelihoods(tested, PAPER_TOKENS)[tested_E]
    scores = {
        "zero-shot (In-Context RALM, Eq. 6)": likelihoods_EK,
        "zero-shot, decay 8, rank weight 0.5": features_EKF[:, :, 5] - 0.5 * features_EKF[:, :, 1],
        "lexical, built-in weights": BUILT_IN.scores(features_EKF),
        **{name: weights.scores(features_EKF) for name, weights in learned.items()},
        "best (oracle)": log_probs_EK,
    }
    there_EK, rows_E = np.isfinite(log_probs_EK), np.arange(len(tested_E))
    chosen = [np.where(there_EK, one, -np.inf).argmax(axis=1) for one in scores.values()]
    gains_ER = np.stack([log_probs_EK[rows_E, one] - log_probs_EK[:, 0] for one in chosen], axis=1)
    names = np.array(tested.documents_E)[tested_E]
    document_E = np.unique(names, return_inverse=True)[1]
    over_none, *gains = held_out_gains(
        np.column_stack([log_probs_EK[:, 0] - tested.baseline_E[tested_E], gains_ER]),
        tested.tokens_E[tested_E],
        document_E,
        0,
    )
    print(f"{held_out.name}: {len(tested_E)} examples of {len({*names})} documents; features {cost:.0f} us a candidate")
    print(f"BM25's first over no passage: {over_none.gain:+.4f} ({over_none.low:+.4f} to {over_none.high:+.4f})")
    print("| choice among 16 | over BM25's first, nats a token | perplexity |\n|---|---|---|")
    for name, one in zip(scores, gains, strict=True):
        print(f"| {name} | {one.gain:+.4f} ({one.low:+.4f} to {one.high:+.4f}) | {np.expm1(-one.gain):+.1%} |")
    halves = ralm.signal_statistics(tested).halves
    if halves is not None:
        first, attainable, best = (one.gain for one in (halves.first, halves.attainable, halves.best))
        share = (attainable - first) / (best - first)
        print(f"attainable on second halves: {attainable - first:+.4f}, {share:.0%} of the best choice\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("held_out", type=Path)
    parser.add_argument("training", type=Path, nargs="+")
    main(**vars(parser.parse_args()))

"""What trained encoders find in a whole index: the gain of their passages over none, before LSR and after it.

    python -m benchmarks.retriever_curve BEFORE AFTER...

Each argument is a folder of `ralm signals` of the same held-out text with the same seed, whose candidates are those of
one encoder. Half of the documents choose the temperature, and the weights of a learned mixer, for each encoder by
itself. On the other half it prints the gains over no passage in nats a token, with 95% intervals of a paired bootstrap
over documents: of the first candidate, of the ensemble with similarity weights, and of the ensemble with the learned
mixer, which knows how likely each passage made the text before; and what they are as multiples of the gain before LSR.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import ralm
from ralm.evaluation.bootstrap import bootstrap_means, interval, sums_of_units
from ralm.records import NO_PASSAGE, DoubleArray, IntArray
from ralm.training.fitting import ReadCandidates, token_log_probs
from ralm.training.mixer import fit_weights, read_examples
from ralm.training.signals import Signals, split_documents

READINGS = ("first passage", "ensemble", "ensemble, learned mixer")


def gains_of(signals: Signals, chosen_E: IntArray, tested_E: IntArray) -> DoubleArray:
    """The nats (E x R) that each reading gains over no passage on the continuations of tested examples."""
    alone_ET, log_probs_EKT = token_log_probs(signals, np.concatenate([chosen_E, tested_E]))
    numbers_EK = signals.passages_EK[np.concatenate([chosen_E, tested_E])]
    scores_EK = signals.scores_EK[np.concatenate([chosen_E, tested_E])].astype(np.float64)
    read = ReadCandidates(log_probs_EKT, np.where(numbers_EK == NO_PASSAGE, -np.inf, scores_EK))
    temperature = read.best_temperature(len(chosen_E))
    weights = fit_weights(read_examples(signals, chosen_E, signals.width))
    mixed_ET = read_examples(signals, tested_E, signals.width).log_likelihood(weights)
    readings = [read.first_ET()[len(chosen_E) :], read.ensemble_ET(temperature)[len(chosen_E) :], mixed_ET]
    print(f"{signals.description}: temperature {temperature:.3g}; {weights}")
    return np.stack([(one - alone_ET[len(chosen_E) :]).sum(axis=1) for one in readings], axis=1)


def main(folders: Sequence[Path]) -> None:
    """Print a row for each encoder and reading."""
    several = [ralm.open_signals(folder) for folder in folders]
    before = several[0]
    assert all(one.documents_E == before.documents_E for one in several), "measure the same text with the same seed"
    usable_E = np.flatnonzero(np.all([one.is_possible_E & one.has_choice_E for one in several], axis=0))
    names_E = np.array(before.documents_E)[usable_E]
    chosen_E, tested_E = (usable_E[part] for part in split_documents(names_E.tolist(), 0.5, 0))
    gains_FER = np.stack([gains_of(one, chosen_E, tested_E) for one in several])
    document_E = np.unique(np.array(before.documents_E)[tested_E], return_inverse=True)[1]
    counts_U = np.bincount(document_E, before.tokens_E[tested_E])
    flat_EC = gains_FER.transpose(1, 0, 2).reshape(len(tested_E), -1)
    sums_UC = sums_of_units(flat_EC, document_E)
    shape = len(several), len(READINGS)
    means_FR = (sums_UC.sum(axis=0) / counts_U.sum()).reshape(shape)
    draws_DFR = bootstrap_means(sums_UC, counts_U).reshape(-1, *shape)
    print(f"{len(tested_E)} examples of {len(counts_U)} documents")
    print("| encoder | read with | gain over no passage | change | times the gain before |\n|---|---|---|---|---|")
    for number, folder in enumerate(folders):
        for column, reading in enumerate(READINGS):
            draws_D, first_D = draws_DFR[:, number, column], draws_DFR[:, 0, column]
            mean, first = means_FR[number, column], means_FR[0, column]
            cells = [f"{mean:+.4f} ({signed(interval(draws_D))})"]
            if number:
                low, high = interval(draws_D / first_D)
                cells += [f"{mean - first:+.4f} ({signed(interval(draws_D - first_D))})"]
                cells += [f"{mean / first:.2f} ({low:.2f} to {high:.2f})"]
            print(f"| {folder.name} | {reading} | {' | '.join([*cells, '', ''][:3])} |")


def signed(ends: tuple[float, float]) -> str:
    """The ends of an interval."""
    return f"{ends[0]:+.4f} to {ends[1]:+.4f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    main(parser.parse_args().folders)

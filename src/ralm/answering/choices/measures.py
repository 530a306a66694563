"""How choices are judged: how often they are right, by subject and by category, and how well they are calibrated.

Knows what was chosen; knows nothing of models or passages. Letters of shapes: U questions, R columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.answering.choices.choosing import Choice
from ralm.answering.choices.subjects import CATEGORIES, category_of
from ralm.evaluation.bootstrap import bootstrap_means, interval
from ralm.evaluation.calibration import brier_score, calibration_bins, expected_calibration_error

_Columns: TypeAlias = Mapping[str, NDArray[np.float64]]
"""A number of each question (U) by the name of what is measured."""
_Key = TypeVar("_Key")


def measures_of(choices: Sequence[Choice], closed: Sequence[Choice], subjects: Sequence[str]) -> dict[str, JsonValue]:
    """The measures of choices with 95% intervals over questions, by subject too if there are `subjects`.

    If the same questions were asked without passages as well (`closed`), `closed_book` has the measures of these, and
    `difference` what they differ in, open book minus closed book.
    """
    books = {"open_book": _columns(choices)}
    if closed:
        books["closed_book"] = _columns(closed)
        books["difference"] = _difference(*books.values())
    means = _means_of({(book, name): values_U for book, own in books.items() for name, values_U in own.items()})
    found: dict[str, dict[str, JsonValue]] = {book: {} for book in books}
    for (book, name), (mean, *ends) in means.items():
        found[book] |= {name: mean, f"{name}_interval": [*ends]}
    for book, own in books.items():
        found[book] |= _by_subject(own["accuracy"], np.array(subjects))
    found["open_book"] |= _counts(choices) | _calibration(choices)
    if closed:
        found["closed_book"] |= _counts(closed) | _calibration(closed)
    return {**found.pop("open_book"), **found}


def _columns(choices: Sequence[Choice]) -> _Columns:
    """Whether each choice is right; if all have probabilities, the Brier score, and the natural logarithm of the
    probability of the right one, unless that is 0 anywhere."""
    columns = {"accuracy": np.array([float(one.right) for one in choices])}
    known = [(one.probabilities_C, one.gold) for one in choices if one.probabilities_C is not None]
    if known and len(known) == len(choices):
        columns["brier_score"] = np.array([brier_score(*one) for one in known])
        golds = np.array([probabilities_C[gold] for probabilities_C, gold in known])
        if golds.all():
            columns["gold_log_prob"] = np.log(golds)
    return columns


def _difference(columns: _Columns, others: _Columns) -> _Columns:
    return {name: columns[name] - others[name] for name in columns if name in others}


def _counts(choices: Sequence[Choice]) -> dict[str, JsonValue]:
    """How often nothing was chosen, and how many questions had a prompt that was cut; the share of choices that are
    certified, if not all are."""
    found: dict[str, JsonValue] = {
        "no_choice": sum(one.chosen is None for one in choices),
        "cut": sum(bool(one.cut) for one in choices),
    }
    certified = float(np.mean([one.certified for one in choices]))
    return found if certified == 1 else {**found, "certified": certified}


def _calibration(choices: Sequence[Choice]) -> dict[str, JsonValue]:
    """Mean confidence (the probability of the likeliest choice), expected calibration error and its bins; nothing if
    not all choices have probabilities."""
    confidences_U = np.array([one.probabilities_C.max() for one in choices if one.probabilities_C is not None])
    if not len(confidences_U) or len(confidences_U) < len(choices):
        return {}
    bins = calibration_bins(confidences_U, np.array([one.right for one in choices]))
    return {
        "confidence": float(confidences_U.mean()),
        "expected_calibration_error": expected_calibration_error(bins),
        "calibration": [asdict(one) for one in bins],
    }


def _means_of(columns: Mapping[_Key, NDArray[np.float64]]) -> dict[_Key, tuple[float, float, float]]:
    """The mean of each column, and where its interval begins and ends; all columns share the drawn questions."""
    values_UR = np.stack([*columns.values()], axis=1)
    drawn_DR = bootstrap_means(values_UR, np.ones(len(values_UR), dtype=np.int64))
    return {
        key: (float(values_UR[:, column].mean()), *interval(drawn_DR[:, column])) for column, key in enumerate(columns)
    }


def _by_subject(accuracy_U: NDArray[np.float64], subjects_U: NDArray[np.str_]) -> dict[str, JsonValue]:
    """The accuracy of each category of MMLU and of each subject that has questions, and the mean of the subjects;
    nothing if no question has a subject."""
    if not subjects_U.any():
        return {}
    categories_U = np.array([category_of(subject) or "" for subject in subjects_U])
    categories: dict[str, JsonValue] = {}
    for category in CATEGORIES:
        its_U = categories_U == category
        if its_U.any():
            mean = _mean_of_subjects(accuracy_U[its_U], subjects_U[its_U])
            categories[category] = {**_accuracy(accuracy_U[its_U]), "mean_of_subjects": mean}
    subjects = [subject for subject in np.unique(subjects_U).tolist() if subject]
    return {
        "mean_of_subjects": _mean_of_subjects(accuracy_U, subjects_U),
        "categories": categories,
        "subjects": {subject: _accuracy(accuracy_U[subjects_U == subject]) for subject in subjects},
    }


def _accuracy(accuracy_U: NDArray[np.float64]) -> dict[str, JsonValue]:
    [(mean, *ends)] = _means_of({"accuracy": accuracy_U}).values()
    return {"questions": len(accuracy_U), "accuracy": mean, "accuracy_interval": [*ends]}


def _mean_of_subjects(accuracy_U: NDArray[np.float64], subjects_U: NDArray[np.str_]) -> float:
    """The mean of the accuracies of subjects: each counts the same, however many questions it has. Questions without a
    subject do not count, unless there are no others."""
    subjects = [subject for subject in np.unique(subjects_U) if subject] or [""]
    return float(np.mean([accuracy_U[subjects_U == subject].mean() for subject in subjects]))

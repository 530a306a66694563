"""Calibration against plain loops, and cases worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.evaluation.calibration import brier_score, calibration_bins, expected_calibration_error

CHOICES = st.lists(st.tuples(st.floats(0.001, 1), st.booleans()), min_size=1, max_size=40)


@given(CHOICES, st.integers(1, 12))
def test_bins_and_error_are_those_of_the_plain_loop(choices: list[tuple[float, bool]], bins: int) -> None:
    found = calibration_bins(np.array([c for c, _ in choices]), np.array([right for _, right in choices]), bins)
    error = 0.0
    for number, one in enumerate(found):
        own = [(c, right) for c, right in choices if number / bins < c <= (number + 1) / bins]
        assert one.count == len(own)
        assert (one.low, one.high) == (number / bins, (number + 1) / bins)
        if own:
            confidence, accuracy = sum(c for c, _ in own) / len(own), sum(right for _, right in own) / len(own)
            assert one.confidence == pytest.approx(confidence)
            assert one.accuracy == pytest.approx(accuracy)
            error += len(own) / len(choices) * abs(accuracy - confidence)
    assert sum(one.count for one in found) == len(choices)
    assert expected_calibration_error(found) == pytest.approx(error)


def test_by_hand() -> None:
    bins = calibration_bins(np.array([0.25, 0.3, 0.9, 1.0]), np.array([False, True, True, True]))
    assert [(one.low, one.high, one.count) for one in bins if one.count] == [
        (0.2, 0.3, 2),
        (0.8, 0.9, 1),
        (0.9, 1.0, 1),
    ]
    assert expected_calibration_error(bins) == pytest.approx(0.5 * abs(0.5 - 0.275) + 0.25 * 0.1)
    assert expected_calibration_error([]) == 0
    assert brier_score(np.array([0.5, 0.25, 0.25]), 0) == pytest.approx(0.25 + 2 * 0.0625)
    assert brier_score(np.array([0.0, 1.0]), 0) == 2
    assert brier_score(np.array([0.0, 1.0]), 1) == 0

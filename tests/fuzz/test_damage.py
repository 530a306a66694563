"""A few damaged files of every kind: rejected, or of no consequence. `RALM_FUZZ` is how many of each."""

import os

import pytest

from tests.fuzz.damage import bad_mutants
from tests.fuzz.targets import TARGETS, Target

COUNT = int(os.environ.get("RALM_FUZZ", "5"))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_damaged_files_are_refused_or_do_no_harm(target: Target) -> None:
    assert list(bad_mutants(target, COUNT, seed=1)) == []

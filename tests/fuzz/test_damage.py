"""A few hundred damaged files of every kind: refused, or of no consequence. `make fuzz` tries thousands."""

import pytest

from tests.fuzz.damage import mutants
from tests.fuzz.targets import TARGETS, Target


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_damaged_files_are_refused_or_do_no_harm(target: Target) -> None:
    assert [mutant for mutant in mutants(target, 36, seed=1) if mutant.bad] == []

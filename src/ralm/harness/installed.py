"""Whether lm-evaluation-harness is installed, and new enough."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Final

from ralm.errors import MissingExtraError, extra

OLDEST: Final = "0.4.10"
"""The oldest version that the tests were run with."""


@contextmanager
def lm_eval_installed() -> Iterator[None]:
    """Around imports of lm_eval: MissingExtraError if it is not installed, or older than `OLDEST`."""
    with extra("harness", "ralm as a model of lm-evaluation-harness needs", ("lm_eval", "torch", "transformers")):
        found = version("lm_eval")
        if _numbers(found) < _numbers(OLDEST):
            raise MissingExtraError(
                f"lm_eval {found} is too old for ralm, which needs {OLDEST} or newer: pip install 'ralm[harness]'."
            )
        yield


def _numbers(of: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", of)[:3]]

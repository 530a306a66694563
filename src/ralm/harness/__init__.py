"""ralm as a model of lm-evaluation-harness.

`ralm.harness.model` registers it there when it is imported. `python -m ralm.harness` is the harness's own program with
this model in it, for versions of the harness that do not look for models of other packages.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Final

from ralm.errors import MissingExtraError, extra

_OLDEST: Final = "0.4.10"
"""The oldest version that the tests were run with."""


@contextmanager
def lm_eval_installed() -> Iterator[None]:
    """Raise MissingExtraError if lm_eval, which the block imports, is not installed or older than `_OLDEST`."""
    with extra("harness", "ralm as a model of lm-evaluation-harness needs", ("lm_eval", "torch", "transformers")):
        found = version("lm_eval")
        if _numbers(found) < _numbers(_OLDEST):
            raise MissingExtraError(
                f"lm_eval {found} is too old for ralm, which needs {_OLDEST} or newer: pip install 'ralm[harness]'."
            )
        yield


def _numbers(of: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", of)[:3]]

"""Models and encoders on a Ray cluster of many machines; only this package uses Ray.

workers.py  connects to a cluster, and runs tasks on its machines
models.py   a language model and an encoder whose copies are on the machines
"""

import os
from contextlib import AbstractContextManager

from ralm.errors import extra

# Ray reads this when it is imported. Otherwise it prints to standard output that workers died.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")


def ray_extra() -> AbstractContextManager[None]:
    """Turn a missing package of the extra `ray` into MissingExtraError."""
    return extra("ray", "work on a Ray cluster needs", ("ray",))

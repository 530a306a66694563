"""Models and encoders on a Ray cluster of many machines; only this package uses Ray.

cluster.py  connects to a cluster, and checks its machines
workers.py  actors that hold what takes long to load, one for each machine or GPU, and do tasks with it
models.py   a language model whose copies on the machines share the scoring and the answering
encode.py   encodes the passages of an index
"""

import os
from contextlib import AbstractContextManager

from ralm.errors import extra

# Ray reads this when it is imported. Otherwise it prints to standard output that workers died.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")


def ray_extra() -> AbstractContextManager[None]:
    """Turn a missing package of the extra `ray` into MissingExtraError."""
    return extra("ray", "work on a Ray cluster needs", ("ray",))

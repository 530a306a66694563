"""What two texts share; works on token ids."""

import numpy as np

from ralm.records import IntArray


def shared_tokens(one: IntArray, other: IntArray) -> int:
    """The length of the common prefix of two texts (int64)."""
    shortest = min(len(one), len(other))
    differ = np.flatnonzero(one[:shortest] != other[:shortest])
    return int(differ[0]) if len(differ) else shortest

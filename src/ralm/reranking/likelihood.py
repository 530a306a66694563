"""Choosing the passage under which some tokens are likeliest.

By the targets themselves that is the oracle (In-Context RALM, Eq. 5 and Figure 7): what the best of the candidates
would be worth, not a method, since it looks at the text to be predicted.
"""

from collections.abc import Sequence

import numpy as np

from ralm.records import FloatArray


def likeliest(candidates: Sequence[FloatArray]) -> int:
    """The index of the candidate whose tokens have the highest total log-probability, the first where equal.

    `candidates` holds a vector (float32) of natural log-probabilities for each candidate, of the same tokens.
    """
    return int(np.argmax([log_probs.sum(dtype=np.float64) for log_probs in candidates]))

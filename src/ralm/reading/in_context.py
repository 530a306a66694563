"""In-context reading: one document before the context of each stride (In-Context RALM, Eq. 4).

Works on token ids and plans; knows nothing of how passages were found or how they are scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import JsonValue

from ralm.protocols import Documents
from ralm.reading.plan import Plan
from ralm.records import IntArray, PromptPrefix, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class InContext:
    """Reads the best passage of each row."""

    hits: ClassVar[int] = 1

    @property
    def config(self) -> dict[str, JsonValue]:
        """The name; there are no options."""
        return {"reader": "in-context"}

    def prompt_prefixes(self, hits: Sequence[tuple[int, float]], documents: Documents) -> Sequence[PromptPrefix]:
        """The best passage alone."""
        number, _ = hits[0]
        return [PromptPrefix(documents[number], (number,))]


def stride_request(tokens: IntArray, plan: Plan, row: int, document: IntArray, before: int = 0) -> Request:
    """The request that scores the targets of one row read with one document, which may be empty.

    The last `before` tokens of the prefix are targets too, or fewer at the beginning of the text. Token 0 is never a
    target.
    """
    context_begin = plan.context_begins(row, len(document))
    target_begin = max(1, int(plan.target_begin_R[row]) - before)
    return Request(
        document=document,
        context=tokens[context_begin:target_begin],
        targets=tokens[target_begin : int(plan.end_R[row])],
    )


def rows_with_targets(plan: Plan) -> Sequence[int]:
    """The rows with targets: all, except a first stride that holds only token 0."""
    return np.flatnonzero(plan.target_begin_R < plan.end_R).tolist()

"""In-context reading (In-Context RALM, Eq. 2): one document before the context of each stride.

    p(x_1 .. x_n) = product over i of  p(x_i | [R(x_<i); x_<i])                       Eq. 2

`Plan` restricts the retrieval to every s-th token (Eq. 3) and the query to l tokens (Eq. 4).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ralm.errors import UsageError
from ralm.options import Part
from ralm.protocols import Documents
from ralm.reading.plan import Plan, PlanOptions
from ralm.records import IntArray, PromptPrefix, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class InContext(Part):
    """Read the best passage of each row (In-Context RALM, Eq. 2)."""

    named: ClassVar = ("reader", "in-context")
    hits: ClassVar[int] = 1

    def prompt_prefixes(self, hits: Sequence[tuple[int, float]], documents: Documents) -> Sequence[PromptPrefix]:
        """Return the best passage alone."""
        number, _ = hits[0]
        return [PromptPrefix(documents[number], (number,))]


def check_tokens_before(
    document_tokens: int, tokens: int, advance: int, max_length: int, named: str = "`rerank` tokens"
) -> None:
    """Raise UsageError if the last `tokens` of a prefix, `named` so, cannot be scored after a whole document."""
    if document_tokens + tokens + advance >= max_length:
        beside = f" beside the {advance} that the window advances at a time" if advance else ""
        raise UsageError(
            f"`document_tokens` {document_tokens} and {named} {tokens} do not fit together into {max_length} "
            f"tokens{beside}: lower one of them."
        )


def check_plan_before(options: PlanOptions, tokens: int, named: str = "`rerank` tokens") -> None:
    """Check the windows of a plan as `check_tokens_before` does."""
    if options.windows != "rolling":
        check_tokens_before(options.document_tokens, tokens, options.advance, options.max_length, named)
    elif tokens > options.query_tokens:
        raise UsageError(
            f"{named} {tokens} are more than the `query_tokens` {options.query_tokens} that rolling windows have "
            "before their targets: lower it."
        )


def stride_request(tokens: IntArray, plan: Plan, row: int, document: IntArray, before: int = 0) -> Request:
    """Return the request for targets, and `before` tokens, after [document; context] (In-Context RALM, Eq. 2)."""
    context_begin = plan.context_begins(row, len(document))
    target_begin = max(int(plan.first_R[row]) + 1, int(plan.target_begin_R[row]) - before)
    return Request(
        document=document,
        context=tokens[context_begin:target_begin],
        targets=tokens[target_begin : int(plan.end_R[row])],
    )


def rows_with_targets(plan: Plan) -> Sequence[int]:
    """Return the rows with targets: all, except first strides that hold only the first token of a document."""
    return np.flatnonzero(plan.target_begin_R < plan.end_R).tolist()

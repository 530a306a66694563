"""In-context reading (In-Context RALM, Eq. 2): one document before the context of each stride.

    p(x_1 .. x_n) = product over i of  p(x_i | [R(x_<i); x_<i])                       Eq. 2

`Plan` restricts the retrieval to every s-th token (Eq. 3) and the query to l tokens (Eq. 4). `CheckedReader` wraps this
reader, and any other one, where it enters.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import JsonValue

from ralm.errors import PartError, UsageError
from ralm.protocols import Documents, Reader
from ralm.reading.mixers import SimilarityWeights
from ralm.reading.mixing import CheckedMixer
from ralm.reading.plan import Plan, PlanOptions
from ralm.records import NO_PASSAGE, IntArray, PromptPrefix, Readings, Request
from ralm.validation import check_count, config_of


@dataclass(frozen=True, slots=True, kw_only=True)
class InContext:
    """Reads the best passage of each row (In-Context RALM, Eq. 2)."""

    hits: ClassVar[int] = 1

    @property
    def config(self) -> dict[str, JsonValue]:
        """The name; there are no options."""
        return {"reader": "in-context"}

    def prompt_prefixes(self, hits: Sequence[tuple[int, float]], documents: Documents) -> Sequence[PromptPrefix]:
        """The best passage alone."""
        number, _ = hits[0]
        return [PromptPrefix(documents[number], (number,))]


class CheckedReader:
    """A reader with its optional members, whose prompt prefixes are checked; `joined` is the largest number of passages
    in one of them, and `mixer` weighs them."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.hits = reader.hits
        self.joined: int = getattr(reader, "joined", 1)
        self.mixer = CheckedMixer(getattr(reader, "mixer", SimilarityWeights()))
        self._name = type(reader).__name__
        check_count("hits", self.hits)
        if hasattr(reader, "mixer") and config_of(reader, "reader").get("mixer") != config_of(reader.mixer, "mixer"):
            raise PartError(
                f"the reader {self._name} has a mixer, whose `config` is not in its own: add it under the key `mixer`."
            )

    @classmethod
    def of(cls, reader: "Reader | CheckedReader | None") -> "CheckedReader":
        """The reader, wrapped unless it is already; `InContext` if there is none."""
        return reader if isinstance(reader, cls) else cls(reader or InContext())  # type: ignore[arg-type]

    def readings(self, hits: Sequence[tuple[int, float]], documents: Documents) -> Readings:
        """Return the readings of one row; without hits, the one without a passage. PartError if they are not of these
        hits."""
        if not hits:
            return Readings.single(PromptPrefix(documents[NO_PASSAGE]))
        prompt_prefixes = self.reader.prompt_prefixes(hits, documents)
        if fault := _fault_of(prompt_prefixes, {number for number, _ in hits}):
            raise PartError(f"the reader {self._name} gives {fault}; see `Reader` for what it should give.")
        return self.mixer.readings(prompt_prefixes, documents)

    def check_room(self, prompt_prefixes: Iterable[PromptPrefix], after: int, max_length: int) -> None:
        """Raise UsageError if the longest prompt prefix leaves no room for the `after` tokens that must follow it."""
        longest = max((len(one.tokens) for one in prompt_prefixes), default=0)
        if longest + after > max_length:
            raise UsageError(
                f"the reader {self._name} puts {longest} tokens before the context, and the {after} that must follow "
                f"them do not fit into `max_length` {max_length} as well: lower `document_tokens` or raise "
                "`max_length`."
            )


def _fault_of(prompt_prefixes: Sequence[PromptPrefix], found: set[int]) -> str:
    """The fault of the prompt prefixes of a row with the passages `found`; empty if there is none."""
    if not isinstance(prompt_prefixes, Sequence):
        return f"{type(prompt_prefixes).__name__} instead of prompt prefixes"
    for one in prompt_prefixes:
        if not isinstance(one, PromptPrefix):
            return f"{type(one).__name__} instead of a PromptPrefix"
        if not isinstance(one.tokens, np.ndarray) or one.tokens.ndim != 1 or one.tokens.dtype != np.int64:
            return "a prompt prefix whose tokens are not an int64 vector"
        if foreign := [number for number in one.passages if number not in found]:
            return f"a prompt prefix of passage {foreign[0]}, which is not among the hits of its row"
    return "" if len(prompt_prefixes) else "no prompt prefix"


def check_tokens_before(
    document_tokens: int, tokens: int, advance: int, max_length: int, named: str = "`RerankOptions.tokens`"
) -> None:
    """Raise UsageError if the last `tokens` of a prefix cannot be scored after a document of full length, in windows
    that advance `advance` tokens at a time. Messages call the tokens `named`."""
    if document_tokens + tokens + advance >= max_length:
        beside = f" beside the {advance} that the window advances at a time" if advance else ""
        raise UsageError(
            f"`document_tokens` {document_tokens} and {named} {tokens} do not fit together into {max_length} "
            f"tokens{beside}: lower one of them."
        )


def check_plan_before(options: PlanOptions, tokens: int, named: str = "`RerankOptions.tokens`") -> None:
    """As `check_tokens_before`, for the windows of a plan."""
    if options.windows != "rolling":
        check_tokens_before(options.document_tokens, tokens, options.advance, options.max_length, named)
    elif tokens > options.query_tokens:
        raise UsageError(
            f"{named} {tokens} are more than the `query_tokens` {options.query_tokens} that rolling windows have "
            "before their targets: lower it."
        )


def stride_request(tokens: IntArray, plan: Plan, row: int, document: IntArray, before: int = 0) -> Request:
    """The request that scores the targets of one row after [document; context] (In-Context RALM, Eq. 2); also the last
    `before` tokens of the prefix, if it has as many. Token 0 is never a target."""
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

"""Plans (In-Context RALM, Eq. 3 and 4): the targets of each stride, its query, and the context it is read in.

    p(x_1 .. x_n) = product over strides j and i = 1 .. s of  p(x_(sj+i) | [R(q_j); x_<(sj+i)])

with q_j = x_<=sj in Eq. 3 and the last l tokens of it in Eq. 4. A plan is data with a row per stride (R rows), computed
only from the number of tokens. The differences between the papers and their official code (`semantics`) are in this
module alone; docs/method.md lists them.

Two columns describe both semantics and all kinds of windows. `context_begin_R` is where the context of a row begins
without a document, and `room_R` is how many tokens a document may have before it pushes out the oldest context. So with
a document of m tokens, a row reads

    [document; tokens from context_begin + max(0, m - room) up to the targets; targets]

The official code lets the document overwrite the beginning of the window (room 0); the paper drops the oldest tokens
only as far as needed (room = model length - window length). Sliding windows are blocks of one stride. In REPLUG's
rolling windows the document comes before the window and never changes it, and an end-of-text token before the text is
token 0: it is read and never scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ralm.corpus.words import is_spaceless
from ralm.errors import TextError, UsageError
from ralm.options import Option, check_options
from ralm.records import IntArray, Request

Semantics = Literal["paper", "official"]
Windows = Literal["sliding", "blocked", "rolling"]

Bos = Literal["auto", "always", "never"]
"""`auto`: the special tokens that the tokenizer puts first by default. `always`: its BOS, even if the tokenizer does
not add it by default. `never`: none."""

BosOption = Annotated[
    Bos,
    Option(
        "Special tokens that every reading begins with, with passages or without: those that the tokenizer puts first "
        "by default (auto), its BOS in any case (always), or none (never)."
    ),
]

Stride = Annotated[int, Option("Number of tokens between retrievals.")]
QueryTokens = Annotated[int, Option("Number of last tokens to use as the query.", default_text="32; dense: 64")]
DENSE_QUERY_TOKENS: Final = 64
"""The papers' query length l for dense retrieval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options of In-Context RALM (Ram et al., 2023, sections 3.2 and 4.3) with the paper's values as defaults.

    All lengths are in tokens of the language model: `stride` s, `query_tokens` l, `document_tokens` the length that a
    retrieved passage is cut to, `max_length` L. With `windows="blocked"` the beginning of the context advances every
    `block` tokens instead of every stride, so that strides that read the same document share one forward pass.

    `windows="rolling"` follows REPLUG's code; the paper does not describe its windows. It reads an end-of-text token
    and the first s + l tokens without retrieval. After that, each window of s + l tokens is read after the document and
    has s targets. The query is the first l tokens of a window: all tokens before the targets, except the last. REPLUG's
    context_len 128 and pred_len 768 are `query_tokens` 127 and `stride` 769.

    Special tokens (`bos`) count towards `document_tokens`; the official code has them only before documents. A plan
    with `document_tokens` 0 is only for retrieval and cannot be read.

    Raises UsageError if the values do not fit together.
    """

    semantics: Annotated[
        Semantics, Option("paper or official: follow the paper's text, or its published code, where they differ.")
    ] = "paper"
    stride: Stride = 4
    query_tokens: QueryTokens = 32
    document_tokens: Annotated[
        int, Option("Maximum number of tokens of a passage; longer ones are cut.", minimum=0)
    ] = 256
    max_length: Annotated[int, Option("Maximum number of tokens that the model reads at once, passage included.")] = (
        1024
    )
    windows: Annotated[
        Windows,
        Option(
            "sliding: all the context that fits, for every stride; blocked: it advances a block at a time; rolling: "
            "as in REPLUG's code, windows of `stride` plus `query_tokens` tokens."
        ),
    ] = "sliding"
    block: Annotated[
        int,
        Option("Number of tokens in a block of blocked windows."),
    ] = 256
    bos: BosOption = "auto"

    def __post_init__(self) -> None:
        check_options(self)
        if self.bos != "auto" and self.semantics == "official":
            raise UsageError(
                f'`bos="{self.bos}"` is not what the published code does: leave out `semantics="official"`, or `bos`.'
            )
        if self.windows == "rolling" and self.semantics != "official":
            raise UsageError('`windows="rolling"` follows REPLUG\'s code: give `semantics="official"` with it.')
        if self.windows == "blocked" and self.block % self.stride:
            raise UsageError(f"`block` must be a multiple of `stride` {self.stride}, not {self.block}.")
        if self.document_tokens > 0:
            self.check_documents(1)

    @property
    def advance(self) -> int:
        """How many tokens the beginning of the context advances at a time."""
        return self.block if self.windows == "blocked" else self.stride

    @property
    def after_document(self) -> int:
        """How many tokens must fit into the model after a document."""
        return self.advance + (self.query_tokens if self.windows == "rolling" else 0)

    def check_block(self) -> None:
        """Raise UsageError if there is a block, and no windows that have one."""
        if self.windows != "blocked" and self.block != PlanOptions().block:
            raise UsageError('`block` has no effect without `windows="blocked"`.')

    def check_documents(self, documents: int) -> None:
        """Raise UsageError if this many documents in one context leave no room for the tokens after them."""
        if self.document_tokens < 1:
            raise UsageError(f"`document_tokens` must be at least 1, not {self.document_tokens}.")
        if documents * self.document_tokens + self.after_document > self.max_length:
            several = f"`documents` {documents} of " if documents > 1 else ""
            named = f"{'`block`' if self.windows == 'blocked' else '`stride`'} {self.advance}"
            if self.windows == "rolling":
                named = f"{named} and `query_tokens` {self.query_tokens}"
            raise UsageError(
                f"{several}`document_tokens` {self.document_tokens} and {named} do not fit together into "
                f"`max_length` {self.max_length}: lower one of them or raise the model length."
            )


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A row per stride of a text; its targets are `begin_R:end_R` without the first token of a document, `first_R`."""

    options: PlanOptions
    text_tokens: int
    first_R: IntArray
    begin_R: IntArray
    end_R: IntArray
    context_begin_R: IntArray
    room_R: IntArray
    query_begin_R: IntArray
    query_end_R: IntArray
    retrieves_R: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.begin_R)

    @property
    def target_begin_R(self) -> IntArray:
        """Where the targets of each row begin; equal to `end_R` for a row without targets (only a first token)."""
        return np.maximum(self.begin_R, self.first_R + 1)

    @property
    def documents(self) -> IntArray:
        """The first token of each document."""
        return np.unique(self.first_R)

    @property
    def positions_T(self) -> IntArray:
        """The targets of all rows: every token but the first of each document."""
        return np.delete(np.arange(self.text_tokens, dtype=np.int64), self.documents)

    @property
    def counts_first(self) -> bool:
        """Whether perplexities divide by all of the text, the first token included, as the official code does."""
        return self.options.semantics == "official" and self.options.windows != "rolling"

    @property
    def counted_tokens(self) -> int:
        """The divisor of token perplexity: the number of targets, or of all tokens of the text in the official code."""
        return self.text_tokens if self.counts_first else self.text_tokens - len(self.documents)

    def count_words(self, text: str) -> int:
        """Return the divisor of word perplexity; 0 for a text that is mostly of scripts without spaces."""
        if self.options.semantics == "official":
            return text.count(" ")
        return 0 if is_spaceless(text) else len(text.split())

    def context_begins(self, row: int, document_tokens: int) -> int:
        """Return the first token of the context that row `row` reads after a document of `document_tokens` tokens."""
        pushed_out = max(0, document_tokens - int(self.room_R[row]))
        return min(int(self.context_begin_R[row]) + pushed_out, int(self.begin_R[row]))


def make_plan(text_tokens: int, options: PlanOptions) -> Plan:
    """Return the plan of a text (In-Context RALM, Eq. 3 with stride s, Eq. 4 with query length l).

    Args:
        text_tokens: Number of tokens of the text.
        options: Stride, lengths and windows.

    Raises:
        TextError: The text has fewer than two tokens, so that there is nothing to score.
    """
    if text_tokens < 2:
        raise TextError(f"the text has {text_tokens} token(s), and the first is never scored: give a longer text.")
    windows = _official_windows if options.semantics == "official" else _paper_windows
    if options.windows == "rolling":
        windows = _rolling_windows
    begin_R, end_R, context_begin_R, room_R = windows(text_tokens, options)
    query_begin_R, query_end_R = np.maximum(begin_R - options.query_tokens, 0), begin_R
    if options.windows == "rolling":
        query_begin_R, query_end_R = context_begin_R, np.maximum(begin_R - 1, 0)
    return Plan(
        options=options,
        text_tokens=text_tokens,
        first_R=np.zeros_like(begin_R),
        begin_R=begin_R,
        end_R=end_R,
        context_begin_R=context_begin_R,
        room_R=room_R,
        query_begin_R=query_begin_R,
        query_end_R=query_end_R,
        retrieves_R=begin_R > 0,  # there is no text before the first stride, so no query
    )


def join_plans(plans: Sequence[Plan]) -> Plan:
    """Return the plan of documents that stand one after the other and are read each on its own."""
    firsts = np.cumsum([0, *(plan.text_tokens for plan in plans)])

    moved = {
        name: np.concatenate([getattr(plan, name) + first for plan, first in zip(plans, firsts, strict=False)])
        for name in ("first_R", "begin_R", "end_R", "context_begin_R", "query_begin_R", "query_end_R")
    }
    return Plan(
        options=plans[0].options,
        text_tokens=int(firsts[-1]),
        room_R=np.concatenate([plan.room_R for plan in plans]),
        retrieves_R=np.concatenate([plan.retrieves_R for plan in plans]),
        **moved,
    )


_Columns: TypeAlias = tuple[IntArray, IntArray, IntArray, IntArray]
"""`begin_R`, `end_R`, `context_begin_R` and `room_R`."""


def _paper_windows(text_tokens: int, options: PlanOptions) -> _Columns:
    """Return strides from the first token on; a document first takes free room, then pushes out the oldest tokens."""
    begin_R = np.arange(0, text_tokens, options.stride, dtype=np.int64)
    end_R = np.minimum(begin_R + options.stride, text_tokens)
    block_end_R = np.minimum((begin_R // options.advance + 1) * options.advance, text_tokens)
    context_begin_R = np.maximum(block_end_R - options.max_length, 0)
    return begin_R, end_R, context_begin_R, options.max_length - (block_end_R - context_begin_R)


def _official_windows(text_tokens: int, options: PlanOptions) -> _Columns:
    """Return a first window of L tokens without retrieval, then strides; a document overwrites the beginning."""
    length = options.max_length
    begin_R = np.concatenate([[0], np.arange(length, text_tokens, options.stride)]).astype(np.int64)
    end_R = np.minimum(np.concatenate([[length], begin_R[1:] + options.stride]), text_tokens).astype(np.int64)
    block_R = (begin_R - length) // options.advance
    context_begin_R = np.where(begin_R == 0, 0, (block_R + 1) * options.advance)
    return begin_R, end_R, context_begin_R, np.zeros_like(begin_R)


def _rolling_windows(text_tokens: int, options: PlanOptions) -> _Columns:
    """Return REPLUG's windows: all but the first have s + l tokens and end before their last target."""
    window = options.stride + options.query_tokens
    begin_R = np.concatenate([[0], np.arange(window + 1, text_tokens, options.stride)]).astype(np.int64)
    end_R = np.minimum(np.concatenate([[window + 1], begin_R[1:] + options.stride]), text_tokens).astype(np.int64)
    context_begin_R = np.where(begin_R == 0, 0, end_R - 1 - window)
    return begin_R, end_R, context_begin_R, np.full_like(begin_R, max(0, options.max_length - window))


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

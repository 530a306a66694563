"""Plans: which tokens are targets, which are the query, and which context they are read in.

A plan is data with a row per stride (R rows), computed from the number of tokens alone. It is the only place that
knows what the papers and their official code do differently (`semantics`); see docs/method.md for the list.

Both readings, and both kinds of windows, are the same two columns. `context_begin_R` is where the context of a row
begins when there is no document, and `room_R` is how many tokens a document may have before it pushes context out at
the old end. So with a document of m tokens, a row reads

    [document; tokens from context_begin + max(0, m - room) up to the targets; targets]

The official code lets the document overwrite the beginning of the window (room 0); the paper drops the oldest tokens
only as far as needed (room = model length - window length). Sliding windows are blocks of one stride.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ralm.errors import TextError, UsageError
from ralm.records import IntArray

Semantics = Literal["paper", "official"]
Windows = Literal["sliding", "blocked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options of In-Context RALM (Ram et al., 2023, sections 3.2 and 4.3) with the paper's values as defaults.

    All lengths are in tokens of the language model: `stride` s, `query_tokens` l, `document_tokens` the cut of a
    retrieved passage, `max_length` L. With `windows="blocked"` the beginning of the context advances every `block`
    tokens instead of every stride, so that strides that read the same document share one forward pass.

    Raises UsageError where the values make no plan.
    """

    semantics: Semantics = "paper"
    stride: int = 4
    query_tokens: int = 32
    document_tokens: int = 256
    max_length: int = 1024
    windows: Windows = "sliding"
    block: int = 256

    def __post_init__(self) -> None:
        _check_choice("semantics", self.semantics, get_args(Semantics))
        _check_choice("windows", self.windows, get_args(Windows))
        for name in ("stride", "query_tokens", "document_tokens", "max_length", "block"):
            if getattr(self, name) < 1:
                raise UsageError(f"{_option(name)} must be at least 1, not {getattr(self, name)}.")
        if self.windows == "blocked" and self.block % self.stride:
            raise UsageError(f"--block must be a multiple of --stride {self.stride}, not {self.block}.")
        if self.document_tokens + self.advance > self.max_length:
            step = "--block" if self.windows == "blocked" else "--stride"
            raise UsageError(
                f"--document-tokens {self.document_tokens} and {step} {self.advance} do not fit together into "
                f"--max-length {self.max_length}: lower one of them or raise the model length."
            )

    @property
    def advance(self) -> int:
        """How many tokens the beginning of the context advances at a time."""
        return self.block if self.windows == "blocked" else self.stride


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A row per stride of a text of `text_tokens` tokens; all columns int64 but `retrieves_R` (bool).

    The stride of row r is `begin_R[r]:end_R[r]`; its targets are the same tokens but for token 0 of the text, which has
    nothing before it and is never scored. Its query is `query_begin_R[r]:begin_R[r]`.
    """

    options: PlanOptions
    text_tokens: int
    begin_R: IntArray
    end_R: IntArray
    context_begin_R: IntArray
    room_R: IntArray
    query_begin_R: IntArray
    retrieves_R: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.begin_R)

    @property
    def target_begin_R(self) -> IntArray:
        """Where the targets of each row begin; equal to `end_R` for a row without targets (token 0 alone)."""
        return np.maximum(self.begin_R, 1)

    @property
    def counted_tokens(self) -> int:
        """What token perplexity divides by: the targets, or every token of the text in the official code."""
        return self.text_tokens if self.options.semantics == "official" else self.text_tokens - 1

    def count_words(self, text: str) -> int:
        """What word perplexity divides by: words between white space, or the number of spaces in the official code."""
        return text.count(" ") if self.options.semantics == "official" else len(text.split())

    def context_begins(self, row: int, document_tokens: int) -> int:
        """The first token of the context that row `row` reads behind a document of so many tokens."""
        pushed_out = max(0, document_tokens - int(self.room_R[row]))
        return min(int(self.context_begin_R[row]) + pushed_out, int(self.begin_R[row]))


def make_plan(text_tokens: int, options: PlanOptions) -> Plan:
    """The plan of a text of `text_tokens` tokens (In-Context RALM, Eq. 3 and 4).

    Raises TextError where the text has fewer than two tokens, so that there is nothing to score.
    """
    if text_tokens < 2:
        raise TextError(f"the text has {text_tokens} token(s), and the first is never scored: give a longer text.")
    if options.semantics == "official":
        begin_R, end_R, context_begin_R, room_R = _official_windows(text_tokens, options)
        retrieves_R = begin_R > 0
    else:
        begin_R, end_R, context_begin_R, room_R = _paper_windows(text_tokens, options)
        retrieves_R = begin_R > 0  # the prefix of the first stride is empty: there is nothing to ask with
    return Plan(
        options=options,
        text_tokens=text_tokens,
        begin_R=begin_R,
        end_R=end_R,
        context_begin_R=context_begin_R,
        room_R=room_R,
        query_begin_R=np.maximum(begin_R - options.query_tokens, 0),
        retrieves_R=retrieves_R,
    )


def _paper_windows(text_tokens: int, options: PlanOptions) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Strides from the first token on; the document takes free room first, then that of the oldest tokens."""
    begin_R = np.arange(0, text_tokens, options.stride, dtype=np.int64)
    end_R = np.minimum(begin_R + options.stride, text_tokens)
    block_end_R = np.minimum((begin_R // options.advance + 1) * options.advance, text_tokens)
    context_begin_R = np.maximum(block_end_R - options.max_length, 0)
    return begin_R, end_R, context_begin_R, options.max_length - (block_end_R - context_begin_R)


def _official_windows(text_tokens: int, options: PlanOptions) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """A first window of L tokens without retrieval, then a stride a window; the document overwrites its beginning."""
    length = options.max_length
    begin_R = np.concatenate([[0], np.arange(length, text_tokens, options.stride)]).astype(np.int64)
    end_R = np.minimum(np.concatenate([[length], begin_R[1:] + options.stride]), text_tokens).astype(np.int64)
    block_R = (begin_R - length) // options.advance
    context_begin_R = np.where(begin_R == 0, 0, (block_R + 1) * options.advance)
    return begin_R, end_R, context_begin_R, np.zeros_like(begin_R)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{_option(name)} must be one of {', '.join(choices)}, not {value!r}.")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")

"""Options of signals: which examples are sampled, and which passages are candidates for them."""

from dataclasses import dataclass
from typing import Annotated, Final

from ralm.errors import UsageError
from ralm.options import Needs, Option, check_options, seed_option
from ralm.reading.plan import BosOption

_ALWAYS: Final = Needs("training text", lambda _options: True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleOptions:
    """How examples are sampled. All lengths are in tokens of the language model.

    `examples`: how many, at most. `continuation_tokens` y: 4 in In-Context RALM, 128 in REPLUG. `prefix_tokens`: the
    least length of x. `sequence_tokens`: the most tokens of x and y together (REPLUG: 256). `per_sequence`: how many
    consecutive examples are drawn from a sequence; they share forward passes, so more of them cost less each and differ
    less. `query_tokens`: the last tokens of x that are the query. Raises UsageError if the values do not fit together.
    """

    examples: Annotated[int, Option("Number of examples to sample.")] = 10_000
    continuation_tokens: Annotated[
        int, Option("Tokens of a continuation: the text that a passage should make likely.")
    ] = 4
    prefix_tokens: Annotated[int, Option("Least number of tokens before a continuation.")] = 128
    sequence_tokens: Annotated[int, Option("Tokens of a sequence: a prefix and its continuations.", least=2)] = 256
    per_sequence: Annotated[
        int, Option("Consecutive examples per sequence; they share forward passes of the language model.")
    ] = 32
    query_tokens: Annotated[int, Option("Number of last tokens to use as the query.")] = 32
    seed: Annotated[int, seed_option(_ALWAYS)] = 0

    def __post_init__(self) -> None:
        check_options(self)
        if self.prefix_tokens + self.continuation_tokens > self.sequence_tokens:
            raise UsageError(
                f"`prefix_tokens` {self.prefix_tokens} and `continuation_tokens` {self.continuation_tokens} do not fit "
                f"into `sequence_tokens` {self.sequence_tokens}: raise it or lower one of them."
            )
        if self.query_tokens > self.prefix_tokens:
            raise UsageError(
                f"`query_tokens` {self.query_tokens} must be at most `prefix_tokens` {self.prefix_tokens}: every "
                "example needs a whole query before it."
            )


REPLUG_EXAMPLES: Final = ExampleOptions(
    examples=800_000,
    continuation_tokens=128,
    prefix_tokens=128,
    sequence_tokens=256,
    per_sequence=1,
    query_tokens=128,
)
"""The examples of REPLUG (section 5.2): 256 tokens, of which the first half is the query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateOptions:
    """Which passages are candidates, and how the language model reads them.

    `candidates`: passages per example (In-Context RALM: 16, REPLUG: 20). `document_tokens`: the length that a passage
    is cut to. `exclude`: leave out passages of the example's own document, and those that share a run of 13 words with
    the text at the continuation: they would teach copying of the answer.
    """

    candidates: Annotated[int, Option("Passages per example.")] = 16
    document_tokens: Annotated[int, Option("Length in tokens that a passage is cut to.")] = 256
    bos: BosOption = "auto"
    exclude: Annotated[
        bool,
        Option(
            "Leave out passages of the example's own document, and those that share 13 words in a row with the text at "
            "its continuation."
        ),
    ] = True

    def __post_init__(self) -> None:
        check_options(self)

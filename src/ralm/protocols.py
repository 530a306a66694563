"""The seams of ralm: what a stage may ask of the parts it is handed, one to three verbs each.

Whatever has these verbs fits: the parts of this package, a fake in a test, or a user's own class.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.progress import Advance
from ralm.records import (
    FloatArray,
    Front,
    Hits,
    IntArray,
    NextTokens,
    Pass,
    Passage,
    Passages,
    SpecialTokens,
)


class Tokenizer(Protocol):
    """Text to the language model's token ids, and back: all that a tokenizer must be able to do.

    What `FullTokenizer` lists beyond that is optional. Where a tokenizer lacks a member, `ralm.lm.tokenizer` fills in
    what the member's docstring says.
    """

    def encode(self, text: str) -> IntArray:
        """Token ids (int64) of a text, without special tokens."""

    def decode(self, tokens: IntArray) -> str:
        """The text of token ids, special tokens written out."""


@runtime_checkable
class FullTokenizer(Tokenizer, Protocol):
    """A tokenizer with its optional members; see `ralm.lm.tokenizer.full_tokenizer`."""

    @property
    def special_tokens(self) -> SpecialTokens:
        """What the tokenizer puts around a text by itself, and its BOS. Without this member: nothing, and no BOS."""

    @property
    def end_token(self) -> int | None:
        """The id of the end-of-text token, where there is one. Without this member: there is none."""

    @property
    def unknown_token(self) -> int | None:
        """The id of the token that stands for what the tokenizer does not know. Without this member: there is none, so
        no share of the text is reported as unknown."""

    def token_of(self, text: str) -> int | None:
        """The id of the token that is written exactly so, else of the unknown token; None where there is neither.
        Without this member: None. Rolling windows then begin with the end-of-text token."""

    def encode_with_spans(self, text: str) -> tuple[IntArray, IntArray]:
        """The ids (int64, N) of a text, and the first and one past the last character of each (int64, N x 2).

        Without this member the tokens are found in the text by what they decode to, which is slower.
        """

    def encode_document(self, text: str, max_tokens: int) -> IntArray:
        """Token ids (int64) of a document as it stands in the prompt: with the special tokens that the tokenizer adds
        by itself (a BOS for OPT and LLaMA), cut to `max_tokens`. Without this member: the same, put together from
        `special_tokens` and `encode`."""


class LanguageModel(Protocol):
    """A frozen causal language model that scores: it gives the log-probabilities of given tokens.

    Scoring is enough for evaluation, reranking and ensembles over a text. `ralm.lm.scoring.Scorer` merges requests into
    passes, remembers what was scored and checks what a model gives, so that a model need not.

    A model may have two more members. `merges_prefixes` (bool): whether a pass that is the beginning of another may be
    read off the longer one; without it, True, which is right for every causal model except those that read a token
    differently depending on how many come after it (LongRoPE). `vocabulary` (int): how many token ids the model knows;
    with it, ids beyond are refused before anything is read.
    """

    @property
    def name(self) -> str:
        """What the model is called in messages: a hub name or a folder."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Everything about the model and its tokenizer that decides the figures of a run."""

    @property
    def max_length(self) -> int:
        """The most tokens that the model can read at once."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own tokenizer."""

    def score(self, passes: Sequence[Pass]) -> Iterable[FloatArray]:
        """For each pass, in order, the natural log-probability (float32, P) of each of its targets.

        Passes come longest first. The arrays may come as a list, or one after the other as results become known: then a
        killed run loses only what was not yet given. -inf stands for a token that cannot come.
        """


Tier: TypeAlias = Literal["all", "chosen", "likeliest"]
"""Which next tokens a model gives log-probabilities of; see `WritingModel.tier`."""


class Continuations(Protocol):
    """Texts that a language model is in the middle of."""

    def next_tokens(self, texts: Sequence[IntArray], wanted: IntArray | None = None) -> NextTokens:
        """What the model says of the next token of B texts (int64) of at least one token each.

        Each text is read as if it stood alone. What it shares with those of the call before need not be read again.
        `wanted` (int64, C) are the token ids to give; the model's `tier` says what is given without it, and whether it
        may be given.
        """


class WritingModel(LanguageModel, Protocol):
    """A language model that also says what may come next, so that texts can be written with it."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """The token ids that end a text, so that generation stops at them; may be empty."""

    @property
    def tier(self) -> Tier:
        """Which next tokens `Continuations.next_tokens` gives.

        `all`: the whole vocabulary without `wanted`, exactly the wanted ids with it. `chosen`: the k likeliest tokens
        without `wanted`, exactly the wanted ids with it. `likeliest`: the k likeliest tokens; `wanted` is not
        supported.
        """

    def continuations(self) -> Continuations:
        """Stand ready to go on from texts, none of which was read yet."""


class Encoder(Protocol):
    """Texts in, vectors of D dimensions out: the larger an inner product, the likelier a passage answers a query."""

    @property
    def dimension(self) -> int:
        """D."""

    @property
    def config(self) -> dict[str, JsonValue]:
        """Everything about the encoder that decides the vectors."""

    @property
    def query_fingerprint(self) -> str:
        """A short hash of what encodes queries: equal for equal weights, whatever folder they came from."""

    @property
    def query_config(self) -> dict[str, JsonValue]:
        """Everything about the encoder that decides the vectors of queries; under `reading`, how it reads a text."""

    def text_of(self, passage: Passage) -> str:
        """What is read of a passage."""

    def encode_passages(self, passages: Sequence[Passage], advance: Advance | None = None) -> FloatArray:
        """The vectors (float32, P x D) of P passages; `advance` is called as they are done."""

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        """The vectors (float32, Q x D) of Q queries."""


class Retriever(Protocol):
    """Queries in, passages out.

    A retriever may also have `stable`, a number: up to so many hits, asking for fewer gives the first of them. A sweep
    then retrieves once for all its points; without it, once for each number of passages.
    """

    @property
    def config(self) -> Mapping[str, Any]:
        """Everything that decides the hits, as JSON: a cache, a run and a resumed run tell retrievers apart by it."""

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """The k best passages for each query, all queries at once; in fewer columns where there are fewer."""


class Rows(Protocol):
    """Places where texts go on, R of them: the strides of a text, or prompts that are being written on."""

    def __len__(self) -> int:
        """R."""

    @property
    def queries(self) -> Sequence[str]:
        """What the retriever was asked for each row; empty for a row that does not retrieve."""

    @property
    def strides(self) -> IntArray:
        """Which stride of its text each row is (int64, R), from 0. Random draws for a row follow from it, so that they
        do not depend on the rows beside it."""

    def prefix(self, row: int) -> str:
        """The text before a row, from its beginning."""

    def prefix_log_probs(
        self, candidates: Sequence[tuple[int, int]], tokens: int, model: LanguageModel | None = None
    ) -> list[FloatArray]:
        """For each (row, passage) the log-probabilities (float32) of the last `tokens` tokens of the row's prefix when
        the passage stands in front; fewer where the prefix is shorter, and possibly none.

        The reading model scores them, or another `model` in tokens of its own. Raises UsageError where the passage and
        the tokens do not fit into the model.
        """

    def target_log_probs(self, candidates: Sequence[tuple[int, int]]) -> list[FloatArray]:
        """For each (row, passage) the log-probabilities (float32) that the reading model gives the row's targets when
        the passage stands in front.

        Raises UsageError where the text after the rows is not known: while it is being written.
        """


class Reranker(Protocol):
    """Chooses which hits of each row are read.

    A reranker may have two more members. `needs_targets` (bool) says that it looks at the text to be predicted, so that
    generation refuses it at once. `model` is the language model that it ranks with, if it has one of its own: what
    stands first in a reading is then checked for that model too.
    """

    @property
    def config(self) -> Mapping[str, Any]:
        """Everything about the reranker that decides its choice. The key `reranker` names it."""

    @property
    def candidates(self) -> int:
        """How many hits of a row it chooses from."""

    def choose(self, rows: Rows, hits: Hits, passages: Passages, k: int) -> Hits:
        """The k best of each row's hits, the best first, fewer where there are fewer; with scores of its own."""


class Documents(Protocol):
    """Passages as they stand in front of a context, as token ids of the reading model."""

    def __getitem__(self, number: int) -> IntArray:
        """The token ids (int64) of a passage: title, newline, text, with the special tokens that stand first, cut to
        the plan's `document_tokens`. For `NO_PASSAGE`, what stands there without one."""

    def passage(self, number: int) -> Passage:
        """The passage itself."""

    def encode(self, text: str) -> IntArray:
        """The token ids (int64) of any text as it would stand in front, cut in the same way."""

    def encode_next(self, text: str) -> IntArray:
        """The token ids (int64) of a text that follows another one in front, without special tokens; cut as well."""


class Reader(Protocol):
    """Says what stands in front of each row's context: which passages, laid out how, weighted how.

    With several fronts a row is read once behind each of them, and the distributions are averaged (REPLUG, Eq. 2). An
    optional attribute `joined` says how many passages stand in one front at most (1 where it is missing), so that
    lengths that cannot fit are refused before anything is retrieved.
    """

    @property
    def config(self) -> Mapping[str, Any]:
        """Everything about the reader that decides the figures. The key `reader` names it."""

    @property
    def hits(self) -> int:
        """How many passages are retrieved for a row."""

    def fronts(self, hits: Sequence[tuple[int, float]], documents: Documents) -> Sequence[Front]:
        """What stands in front of one row, given the passage number and score of its hits, the best first.

        There is at least one hit: a row without hits is read without a passage. The weights sum to 1.
        """


def check_length(model: LanguageModel, max_length: int) -> None:
    """Raise UsageError where a model would be asked to read more than it can."""
    if max_length > model.max_length:
        raise UsageError(
            f"`max_length` {max_length} is beyond the {model.max_length} tokens that {model.name} can read; "
            f"give `max_length` {model.max_length} or less."
        )

"""The protocols of ralm: what each stage expects of the parts that it is given, with one to three methods each.

Any class with these methods works: the parts of this package, a fake in a test, or your own class.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

from pydantic import JsonValue

from ralm.records import (
    DoubleArray,
    FloatArray,
    Hits,
    IntArray,
    Message,
    NextTokens,
    Passage,
    Passages,
    PromptPrefix,
    ScoringSequence,
    SpecialTokens,
)
from ralm.terminal import Advance

UNLIMITED: Final = 1 << 30
"""The `max_length` of a language model without a limit of positions (ALiBi), or whose limit is not known."""


class Tokenizer(Protocol):
    """Converts text to token ids and back; the other members of `FullTokenizer` are optional and have defaults."""

    def encode(self, text: str) -> IntArray:
        """Return the token ids (int64) of a text, without special tokens."""

    def decode(self, tokens: IntArray) -> str:
        """Return the text of token ids, including special tokens."""


@runtime_checkable
class FullTokenizer(Tokenizer, Protocol):
    """A tokenizer with its optional members; see `ralm.lm.tokenizer.full_tokenizer`."""

    @property
    def special_tokens(self) -> SpecialTokens:
        """The special tokens that the tokenizer adds to a text, and its BOS. Without this member: none, and no BOS."""

    @property
    def end_token(self) -> int | None:
        """The id of the end-of-text token, or None. Without this member: None."""

    @property
    def unknown_token(self) -> int | None:
        """The id of the token for text that the tokenizer does not know, or None. Without this member: None."""

    def token_of(self, text: str) -> int | None:
        """Return the id of the token spelled like `text`, else of the unknown token. Without this member: None."""

    def encode_with_spans(self, text: str) -> tuple[IntArray, IntArray]:
        """Return the ids (int64, N) of a text, and the first and one past the last character of each (int64, N x 2).

        Without this member, the spans are found by decoding the tokens.
        """

    def encode_document(self, text: str, max_tokens: int) -> IntArray:
        """Return the ids (int64) of a document in the prompt, with special tokens, cut to `max_tokens`.

        Without this member: the same, built from `special_tokens` and `encode`.
        """

    def encode_chat(self, messages: Sequence[Message]) -> tuple[IntArray, IntArray] | None:
        """Return the ids (int64, N) of a chat, up to the model's answer, and the span of each token (int64, N x 2).

        Spans are of characters of the user's last message, as in `encode_with_spans`. A token of another message, or of
        the chat template, has an empty span: at the beginning of that message if it comes before, else at the end. Text
        of messages is never read as a special token. None if the tokenizer has no chat template, and without this
        member.
        """


class Configured(Protocol):
    """What has settings that decide figures: each part of a reading, and the language model."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Everything that affects figures, as JSON, for a resumed run; of a reader, mixer or reranker its name too."""


class LanguageModel(Configured, Protocol):
    """A frozen causal language model that computes the log-probabilities of given tokens.

    `ralm.lm.scoring.Scorer` merges requests into sequences, caches scores and checks what a model returns. The members
    of `ModelTraits` are optional.
    """

    @property
    def name(self) -> str:
        """The name of the model in messages: a hub name or a folder."""

    @property
    def max_length(self) -> int:
        """The maximum number of tokens that the model can read at once."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own tokenizer."""

    def score(self, sequences: Sequence[ScoringSequence]) -> Iterable[FloatArray]:
        """Return the natural log-probability (float32, P) of each target of each sequence; they come longest first.

        A model that yields each array as soon as it is computed loses less when it is killed.
        """


TOKENS_TOGETHER: Final = 1 << 15
"""Tokens of texts that are continued together on a processor: more are no faster, and a killed run loses more."""
Tier: TypeAlias = Literal["all", "chosen", "top_k", "text"]
"""Which next tokens a model returns log-probabilities for; see `WritingModel.tier`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTraits:
    """The optional members of a language model, with the values for models that lack them."""

    merges_prefixes: bool = True
    """Whether the scores of a sequence may be taken from a longer one that begins with it; not so for LongRoPE."""
    vocabulary: int | None = None
    """The number of token ids of the model; if given, other ids are rejected before the model is called."""
    scores_texts: bool = True
    """Whether `score` returns log-probabilities; some servers only return those of what they generate."""
    tier: Tier = "all"
    """See `WritingModel.tier`."""
    tokens_at_once: int = TOKENS_TOGETHER
    """How many tokens of texts should be continued together, padding included."""
    answers_only: bool = False
    """Whether the model answers messages, so that nothing can be read as the continuation of a text."""


def traits_of(model: LanguageModel) -> ModelTraits:
    """Return the optional members of a model, or those of the model in a `Scorer`, which are its `traits`."""
    traits = getattr(model, "traits", None)
    if isinstance(traits, ModelTraits):
        return traits
    names = (trait.name for trait in fields(ModelTraits))
    return ModelTraits(**{name: getattr(model, name) for name in names if hasattr(model, name)})


class Continuations(Protocol):
    """Texts that a language model is continuing.

    More members are optional:

    - `draw(texts, draws)` returns what each `Draw` draws (`Drawn`) from the predictions of the next tokens of the
      texts. A model on a device draws there, so that no distribution is copied.
    - `chosen(texts, tokens)` is `next_tokens` for exactly these token ids (int64, C), for a model of the tier `chosen`.
    - `score(sequences)` is `LanguageModel.score` that may reuse what the sequences share with the texts of the previous
      call. It is not called if the model's `merges_prefixes` is False.
    - `read_ahead(several)` gets the `TextsAhead` of each average that is requested next, so that one request can read
      several tokens. It changes no result.
    - `known(text)` is how many tokens of a new text (int64) need not be read again, because texts before began with
      them. With it a text may come in pieces, so that a server reads it in chunks; without it, texts are read whole.
    """

    def next_tokens(self, texts: Sequence[IntArray]) -> NextTokens:
        """Return the log-probabilities of the next token of B texts (int64), each of at least one token."""


class WritingModel(LanguageModel, Protocol):
    """A language model that also predicts the next token, so that text can be written with it."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """The token ids at which generation stops; may be empty."""

    @property
    def tier(self) -> Tier:
        """Which next tokens `Continuations.next_tokens` returns.

        `all`: the whole vocabulary. `chosen`: the k most likely tokens, and `Continuations.chosen` any others. `top_k`:
        the k most likely tokens alone. `text`: the greedy token alone, with NaN as its log-probability.
        """

    def continuations(self) -> Continuations:
        """Return a new `Continuations` object that has not read any text."""


class Encoder(Configured, Protocol):
    """A model that turns texts into vectors of D dimensions; the inner product says how well query and passage match.

    An encoder may have `trained_for` (str), the fingerprint of the passage encoder that its queries are for, too.
    """

    @property
    def dimension(self) -> int:
        """The number of dimensions, D."""

    @property
    def query_fingerprint(self) -> str:
        """A short hash of the query encoder: equal for equal weights, regardless of their folder."""

    @property
    def query_config(self) -> dict[str, JsonValue]:
        """Everything about the encoder that affects the query vectors; the key `reading` says how it reads a text."""

    def passage_text(self, passage: Passage) -> str:
        """Return the text of a passage that the encoder reads."""

    def encode_passages(self, passages: Sequence[Passage], advance: Advance | None = None) -> FloatArray:
        """Return the vectors (float32, P x D) of P passages; `advance` is called as passages are done."""

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        """Return the vectors (float32, Q x D) of Q queries."""


class Retriever(Configured, Protocol):
    """A part that finds passages for queries.

    It may also have `stable` (int): up to this `k`, a smaller `k` returns a prefix of the hits of a larger one, so that
    a sweep retrieves once.
    """

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        """Return the k best passages for each query. The hits may have fewer than k columns."""


class Rows(Protocol):
    """R positions at which texts are continued: the strides of a text, or prompts that are being completed."""

    def __len__(self) -> int:
        """Return the number of rows, R."""

    @property
    def queries(self) -> Sequence[str]:
        """The query of each row; empty if the row does not retrieve."""

    @property
    def strides(self) -> IntArray:
        """The index of each row's stride in its text (int64, R), from 0; it seeds the random draws for the row."""

    def prefix(self, row: int) -> str:
        """Return the text before a row."""

    def prefix_log_probs(
        self, candidates: Sequence[tuple[int, int]], tokens: int, model: LanguageModel | None = None
    ) -> list[FloatArray]:
        """Return log-probabilities (float32) of the end of the text before each row, with a passage in front.

        Args:
            candidates: Pairs of a row and the number of a passage.
            tokens: The number of tokens at the end; the text may have fewer.
            model: Score with this model; by default the reading model.

        Raises:
            UsageError: If the passage and the tokens do not fit into the model.
        """

    def target_log_probs(self, candidates: Sequence[tuple[int, int]]) -> list[FloatArray]:
        """Return log-probabilities (float32) of the targets of each (row, passage).

        Raises:
            UsageError: If text is generated, so that targets are not known yet.
        """


class Reranker(Configured, Protocol):
    """A part that chooses which hits of each row are read.

    Two more members are optional: `needs_targets` (bool) says that it looks at the text to be predicted, so that it
    cannot generate; `model` is the language model that it ranks with, if it has its own.
    """

    @property
    def candidates(self) -> int:
        """The number of hits of a row that it chooses from."""

    def choose(self, rows: Rows, hits: Hits, passages: Passages, k: int) -> Hits:
        """Return the k best hits of each row, best first, or all if a row has fewer, with the reranker's scores."""


class Documents(Protocol):
    """Passages as token ids of the reading model, ready to be read before a context."""

    def __getitem__(self, number: int) -> IntArray:
        """Return the token ids (int64) of a passage: leading special tokens, title, newline, text.

        They are cut to the plan's `document_tokens`. `NO_PASSAGE` gives the tokens that are used without a passage.
        """

    def passage(self, number: int) -> Passage:
        """Return the passage itself."""

    def encode(self, text: str) -> IntArray:
        """Return the token ids (int64) of any text in front of a context, with special tokens, cut like a passage."""

    def encode_next(self, text: str) -> IntArray:
        """Return the token ids (int64) of a text that follows another: no special tokens, cut like a passage."""


class Reader(Configured, Protocol):
    """A part that decides what stands before each row's context: which passages, in which layout, with which scores.

    The model reads the row once after each prompt prefix, and the distributions are averaged (REPLUG, Eq. 2). The
    optional `joined` is the largest number of passages in one prompt prefix (default 1), for checks of lengths.
    """

    @property
    def hits(self) -> int:
        """The number of passages to retrieve for a row."""

    def prompt_prefixes(self, hits: Sequence[tuple[int, float]], documents: Documents) -> Sequence[PromptPrefix]:
        """Return the prompt prefixes of a row from its hits: (passage number, score), best first, at least one."""


@runtime_checkable
class Mixer(Configured, Protocol):
    """A function that weighs the K readings of a row; the average of their predictions predicts the text."""

    @property
    def evidence(self) -> int:
        """How many tokens before each target it looks at; 0 if the weights of a row do not depend on its text."""

    def __call__(self, scores_K: DoubleArray, evidence_KE: FloatArray) -> DoubleArray:
        """Return the weights of the readings for one target.

        Args:
            scores_K: Scores of the readings (float64).
            evidence_KE: Natural log-probabilities (float32) of the E = `evidence` tokens before the target, oldest
                first, after each prompt prefix. Where the text has fewer tokens they are 0, which favours no passage.
                There are none (K x 0) before a row is read.

        Returns:
            Natural logarithms of the weights (float64, K), which must sum to 1.
        """


@runtime_checkable
class DistributionMixer(Configured, Protocol):
    """Takes the place of a `Mixer` where text is generated: makes a distribution that need not be an average."""

    def log_probs(self, average_V: DoubleArray, plain_V: DoubleArray) -> DoubleArray:
        """Return the natural log-probabilities (float64, V) of the next token.

        Args:
            average_V: Log-probabilities of the average over the passages of a row, under the reader's weights.
            plain_V: Log-probabilities without passages.
        """

"""The options of reading and of generation: which reader and reranker, and how to continue a text."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from ralm.errors import UsageError
from ralm.options import Needs, Option, check_options, seed_option
from ralm.protocols import LanguageModel, Reader, Reranker
from ralm.reading.beginning import BosOption
from ralm.reading.concatenation import Concatenation
from ralm.reading.ensemble import COLDEST, Ensemble
from ralm.reading.in_context import InContext
from ralm.reading.plan import QueryTokens, Stride
from ralm.reranking.options import RerankOptions
from ralm.reranking.pairs import CrossEncoder

ReaderName = Literal["in-context", "ensemble", "concatenation"]

_DRAWN = Needs("a `temperature` above 0", lambda options: options.temperature > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """How the passages of a row are read: chosen as `reranking` says, and put in front as `reader` says.

    `rerank_lm` names the language model that ranks for zero-shot reranking; None is the reading model. `ensemble` and
    `concatenation` are the options of these readers. Raises UsageError if a reranker chooses from fewer passages than
    are read.
    """

    reranking: Annotated[RerankOptions, Option("How passages are chosen from those that were retrieved.")] = field(
        default_factory=RerankOptions
    )
    rerank_lm: Annotated[
        str | None,
        Option(
            "Model to rank with (zero-shot).",
            default_said="the reading model",
            needs=Needs('`rerank="zero-shot"`', lambda reading: reading.reranking.method == "zero-shot"),
        ),
    ] = None
    reader: Annotated[
        ReaderName,
        Option(
            "Read the best passage (in-context), each of several alone and average the predictions (ensemble: "
            "REPLUG), or several in one context (concatenation)."
        ),
    ] = "in-context"
    ensemble: Annotated[
        Ensemble,
        Option(
            "How an ensemble reads.", needs=Needs('`reader="ensemble"`', lambda reading: reading.reader == "ensemble")
        ),
    ] = field(default_factory=Ensemble)
    concatenation: Annotated[
        Concatenation,
        Option(
            "How several passages are put into one context.",
            needs=Needs('`reader="concatenation"`', lambda reading: reading.reader == "concatenation"),
        ),
    ] = field(default_factory=Concatenation)

    def __post_init__(self) -> None:
        check_options(self)
        candidates, documents = self.reranking.candidates, self.chosen_reader.hits
        if self.reranks and candidates < documents:
            raise UsageError(
                f"`candidates` {candidates} are fewer than the {documents} passages that are read: raise them, or "
                "lower `documents`."
            )

    @property
    def reranks(self) -> bool:
        """Whether passages are reranked."""
        return self.reranking.method != "none"

    @property
    def chosen_reader(self) -> Reader:
        """The selected reader."""
        match self.reader:
            case "in-context":
                return InContext()
            case "ensemble":
                return self.ensemble
            case "concatenation":
                return self.concatenation

    @property
    def ranks_with(self) -> str | None:
        """The name of the ranking model, or None if the reading model ranks."""
        return self.rerank_lm if self.reranking.method == "zero-shot" else None

    def reranker(
        self, model: LanguageModel | None = None, cross_encoder: CrossEncoder | None = None
    ) -> Reranker | None:
        """The reranker, or None if nothing is reranked; see `RerankOptions.reranker`."""
        return self.reranking.reranker(model, cross_encoder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a token is drawn from a distribution.

    `temperature` 0 is greedy; otherwise tokens are drawn from the `top_k` likeliest (None: all), and of these from the
    likeliest that together have probability `top_p`, by a random generator that `seed` decides. `likeliest` is how many
    of the likeliest tokens are recorded with each token that is drawn; it changes no draw.

    Raises UsageError if a value is out of range.
    """

    temperature: Annotated[float, Option("Temperature of the draws; 0 is greedy.", most=1 / COLDEST)] = 0.0
    top_k: Annotated[
        int | None, Option("Draw from this many of the likeliest tokens.", default_said="all", needs=_DRAWN)
    ] = None
    top_p: Annotated[
        float,
        Option(
            "Draw from the likeliest tokens that together have this probability.",
            least=0,
            most=1,
            above=True,
            needs=_DRAWN,
        ),
    ] = 1.0
    seed: Annotated[int, seed_option(_DRAWN)] = 0
    likeliest: Annotated[int, Option("How many likeliest tokens are recorded with each token.", least=0, flag="")] = 0

    def __post_init__(self) -> None:
        check_options(self)
        if 0 < self.temperature < COLDEST:
            raise UsageError(f"`temperature` must be 0 (greedy) or at least {COLDEST:g}, not {self.temperature}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions(Sampling):
    """How to continue a text; lengths in tokens, retrieval options with the paper's values as defaults.

    Tokens are drawn as `Sampling` says. Generation ends after `new_tokens` tokens, at the model's
    end-of-text token, or before the first of the `stop` strings. `max_length` None is the model's own. `bos` says which
    special tokens every reading begins with, with a document and without (see `beginning.Bos`). They count towards
    `document_tokens`, and a prompt that already begins with them has them once. Every prompt has its own random
    generator, seeded with `seed`, so its text does not depend on the other prompts.

    Raises UsageError if a value is out of range.
    """

    new_tokens: Annotated[int, Option("Most tokens to write.")] = 64
    stride: Stride = 4
    query_tokens: QueryTokens = 32
    document_tokens: Annotated[int, Option("Most tokens of a passage; longer ones are cut.")] = 256
    max_length: Annotated[
        int | None, Option("Most tokens that the model reads at once, passage included.", default_said="the model's")
    ] = None
    stop: Annotated[tuple[str, ...], Option("Stop before this string; repeatable.")] = ()
    bos: BosOption = "auto"

    def __post_init__(self) -> None:
        Sampling.__post_init__(self)
        if "" in self.stop:
            raise UsageError("`stop` must not be empty.")

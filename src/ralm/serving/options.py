"""What the operator of a server decides, declared once: flags and files of settings are made from it."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from ralm.errors import UsageError
from ralm.options import Needs, Option, check_options
from ralm.reading import ReadingOptions
from ralm.reading.plan import PlanOptions
from ralm.retrieval.options import RetrieverOptions
from ralm.serving.batching.options import BatchOptions
from ralm.validation import MOST

CHOICES: Final = (
    "index",
    "retriever",
    "query",
    "reader",
    "documents",
    "weights",
    "rerank",
    "candidates",
    "stride",
    "query_tokens",
    "document_tokens",
    "gain",
)
"""What a request may choose in its field `ralm`. None of these names a file, a model or an address."""

_INDEX: Final = Needs("`index`", lambda settings: settings.index is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a request may ask for, and how many may be under way.

    `prompt_tokens` and `new_tokens` None: together as many as the model reads at once.
    """

    body_bytes: Annotated[int, Option("Most bytes of a request.")] = 4 << 20
    prompt_tokens: Annotated[
        int | None,
        Option(
            "Most tokens of a prompt and what is written after it.",
            default_said="as many as the model reads",
            flag="most-tokens",
        ),
    ] = None
    new_tokens: Annotated[
        int | None,
        Option("Most tokens that a request may have written.", default_said="as --most-tokens", flag="most-new-tokens"),
    ] = None
    texts: Annotated[int, Option("Most texts of a request: prompts times n.", flag="most-texts")] = 128
    likeliest: Annotated[int, Option("Most likely tokens that are listed for a token.", flag="most-logprobs")] = 20
    documents: Annotated[int, Option("Most passages that a request may have read or found.", flag="most-documents")] = (
        100
    )
    requests_at_once: Annotated[int, Option("Requests that are answered at once.", flag="most-requests")] = 16
    requests_waiting: Annotated[
        int, Option("Requests that wait for that; more are refused (429).", least=0, flag="most-waiting")
    ] = 64
    seconds: Annotated[float, Option("Most seconds for a request.", above=True, flag="request-seconds")] = 600.0

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Where a server listens, what it calls its model, and what requests may choose.

    `name` None is the last part of the model's own name. Raises UsageError if `allow` names something else than
    `CHOICES`.
    """

    host: Annotated[
        str, Option("Address to listen on; any other than this computer's own needs a key in RALM_SERVE_KEY.")
    ] = "127.0.0.1"
    port: Annotated[int, Option("Port to listen on; 0: any that is free.", least=0, most=65535)] = 8000
    name: Annotated[
        str | None, Option("What requests call the model.", default_said="the last part of --lm", flag="model-name")
    ] = None
    allow: Annotated[
        tuple[str, ...],
        Option(
            f"A choice that requests have: {', '.join(CHOICES)}, or none; repeatable.",
            default_said="all of these",
        ),
    ] = CHOICES
    prompt: Annotated[
        str,
        Option(
            "Prompt of chats, which puts passages into the question, by name or from a TOML file; one without chat is "
            "for models without a chat template."
        ),
    ] = "chat"
    log_prompts: Annotated[bool, Option("Write the beginning of each prompt to the log.")] = False
    limits: Annotated[Limits, Option("How much a request may ask for.")] = field(default_factory=Limits)
    batch: Annotated[BatchOptions, Option("How much a local model reads at a time.")] = field(
        default_factory=BatchOptions
    )

    def __post_init__(self) -> None:
        check_options(self)
        for name in self.allow:
            if name not in (*CHOICES, "none"):
                raise UsageError(f"`allow` must be one of {', '.join(CHOICES)}, or none, not {name!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a text is read: with passages of which index, and how. `index` None is the plain model.

    `plan` has the model's own length once a server has opened its model (`ralm.serving.settings`).
    """

    index: str | None = None
    retrieval: Annotated[RetrieverOptions, Option("How passages are retrieved.", needs=_INDEX)] = field(
        default_factory=RetrieverOptions
    )
    reading: Annotated[ReadingOptions, Option("How passages are read.", needs=_INDEX)] = field(
        default_factory=ReadingOptions
    )
    plan: Annotated[PlanOptions, Option("What is read.")] = field(default_factory=lambda: PlanOptions(max_length=MOST))

    @property
    def config(self) -> dict[str, Any]:
        """What an answer says of it."""
        if self.index is None:
            return {"index": None}
        return {
            "index": self.index,
            "retriever": self.retrieval.retriever,
            "reader": self.reading.reader,
            "documents": self.reading.chosen_reader.hits,
            "rerank": self.reading.reranking.method,
            "stride": self.plan.stride,
        }

"""What the operator of a server decides, declared once: flags are made from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

from ralm.errors import UsageError
from ralm.grammar import keys_of
from ralm.options import Checked, Option, make_record
from ralm.protocols import UNLIMITED, WritingModel
from ralm.reading import READERS, ReadingOptions
from ralm.reading.plan import DENSE_QUERY_TOKENS, PlanOptions
from ralm.retrieval.retriever import RetrieverOptions
from ralm.settings import CATALOGUES, part_texts
from ralm.validation import MAX_COUNT, check_count, check_length

PASSED_ON: Final = ("index", "retriever", "query", "reader", "documents")
"""The choices of a request that is passed on to the server of the model."""
_OF_REQUESTS: Final = ("index", "query", "gain")
"""The choices that no option of the operator has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(Checked):
    """Limits of a request, and of all requests together.

    `new_tokens` None: as many as the model reads at once. `cached_tokens` are those that a local model holds, padding
    included; None: as many as its memory allows.
    """

    body_bytes: Annotated[int, Option("Maximum size of a request in bytes.")] = 4 << 20
    new_tokens: Annotated[
        int | None, Option("Maximum number of new tokens.", default_text="as many as the model reads")
    ] = None
    documents: Annotated[int, Option("Maximum number of passages of a request.")] = 100
    requests_at_once: Annotated[int, Option("Requests that are answered at once.")] = 16
    requests_waiting: Annotated[int, Option("Requests in the queue; more are rejected (429).", minimum=0)] = 64
    seconds: Annotated[float, Option("Seconds until a request times out.", above=True)] = 600.0
    shutdown_seconds: Annotated[
        float, Option("Seconds in which the server ends after SIGTERM; requests have nine tenths of them.", above=True)
    ] = 60.0
    cached_tokens: Annotated[
        int | None,
        Option(
            "Most tokens of requests whose keys and values are held at once; requests that do not fit wait.",
            default_text="a quarter of the free memory; on a CPU at most 32768",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(Checked):
    """Where a server listens, what it calls its model, and the limits of requests."""

    host: Annotated[
        str, Option("Address to listen on; any other than this computer's own needs a key in RALM_SERVE_KEY.")
    ] = "127.0.0.1"
    port: Annotated[int, Option("Port to listen on; 0: any that is free.", minimum=0, maximum=65535)] = 8000
    name: Annotated[
        str | None, Option("Name of the model in requests.", default_text="the last part of --lm", flag="model-name")
    ] = None
    prompt: Annotated[
        str | None,
        Option(
            "Prompt of chats, which puts passages into the question, by name or from a TOML file; one without chat is "
            "for models without a chat template.",
            default_text="chat; with a URL numbered",
        ),
    ] = None
    follow: Annotated[bool, Option("Open an index again when its folder has changed, as SIGHUP does.")] = False
    limits: Annotated[
        Limits,
        Option(
            "Limits of requests, such as new_tokens=256,requests_at_once=8; `ralm help limits` lists the keys.",
            part="keys",
        ),
    ] = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a text is read; without an `index` by the plain model. `plan` gets the model's length by `with_length`."""

    index: str | None = None
    retrieval: Annotated[RetrieverOptions, Option("How passages are retrieved.")] = field(
        default_factory=RetrieverOptions
    )
    reading: Annotated[ReadingOptions, Option("How passages are read.")] = field(default_factory=ReadingOptions)
    plan: Annotated[PlanOptions, Option("What is read.")] = field(
        default_factory=lambda: PlanOptions(max_length=MAX_COUNT)
    )

    @property
    def config(self) -> dict[str, Any]:
        """The settings in an answer."""
        if self.index is None:
            return {"index": None}
        return {
            "index": self.index,
            "retriever": self.retrieval.retriever,
            "reader": self.reading.reader_name,
            "documents": self.reading.chosen_reader.hits,
            **({"mixer": self.reading.mixer} if self.reading.mixes else {}),
            "rerank": self.reading.rerank,
            "stride": self.plan.stride,
        }


_UNKNOWN_LENGTH: Final = 2048
"""The number of tokens that the server reads at once with a model without a limit."""
MAX_TEXTS: Final = 128
"""Maximum number of prompts times n of a request."""
MAX_TEXT_BYTES: Final = 256 << 10
"""Maximum size of a query."""
PLAIN: Final = "plain"
"""The name of the model without passages, in the place of an index."""


def with_length(settings: Settings, model: WritingModel, max_length: int | None) -> Settings:
    """Return the settings with the length that the model reads; UsageError if passages do not fit into it."""
    length = max_length or (_UNKNOWN_LENGTH if model.max_length >= UNLIMITED else model.max_length)
    check_length(model, length)
    plan = settings.plan
    if settings.index is None:  # nothing is put in front
        half = max(1, length // 2)
        plan = replace(plan, document_tokens=min(plan.document_tokens, half), stride=min(plan.stride, half))
    settings = replace(settings, plan=replace(plan, max_length=length))
    if settings.index is not None:
        check_stride_fits(settings)
    return settings


def check_stride_fits(settings: Settings) -> None:
    """Raise UsageError if the passages of a context and a stride do not fit into the model."""
    settings.plan.check_documents(getattr(settings.reading.chosen_reader, "joined", 1))


def with_choices(settings: Settings, choice: Mapping[str, Any], limits: Limits, indexes: tuple[str, ...]) -> Settings:
    """Return the settings with a request's choices; UsageError if one is unknown, or has no effect."""
    index = choice.get("index", settings.index)
    if index is not None and index not in indexes:
        raise UsageError(f"`index` {index!r} is not served; the indexes are: {', '.join(indexes) or 'none'}.")
    values = {name: value for name, value in choice.items() if name not in _OF_REQUESTS}
    settings = _changed(replace(settings, index=index), values)
    if index is None:
        unused = [name for name in choice if name != "index"]
        if unused:
            raise UsageError(f"`{unused[0]}` has no effect without an `index`.")
        return settings
    if "mixer" in values:
        settings.reading.check_mixer()
    if "retriever" in values and "query_tokens" not in values:
        tokens = DENSE_QUERY_TOKENS if settings.retrieval.is_dense else PlanOptions().query_tokens
        settings = replace(settings, plan=replace(settings.plan, query_tokens=tokens))
    check_documents(settings.reading, limits)
    return settings


def _changed(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return the settings with these choices; a part keeps the operator's keys where a request names the same part."""
    retrieval, reading = settings.retrieval, settings.reading
    before = part_texts(retrieval, reading)
    for name in CATALOGUES.keys() & values.keys():
        _check_public(name, values[name], before[name])
    parts = {name: CATALOGUES[name].onto(values.get(name, text), text) for name, text in before.items()}
    if (documents := values.get("documents")) is not None:
        check_count("documents", documents)
        named = READERS.name_of(parts["reader"])
        several = named == "in-context" and "reader" not in values and documents > 1
        parts["reader"] = READERS.onto(
            f"{'concatenation' if several else named}:documents={documents}", parts["reader"]
        )
    changed: Settings = make_record(Settings, {**values, **parts, "documents": None}, settings)
    return changed


def _check_public(name: str, text: str, operators: str) -> None:
    """Raise UsageError if the part of a request is a class, or names a file, a model or an address."""
    catalogue = CATALOGUES[name]
    part = catalogue.name_of(text)
    if ":" in part:
        raise UsageError(f"`{name}` {text!r} is a class, which only the operator can choose.")
    keys = keys_of(catalogue.records[part]) if part in catalogue.records else {}
    for key in catalogue.written_keys(text):
        if key in keys and keys[key].option.private:
            raise UsageError(f"`{name}`: only the operator can choose the key {key!r}.")
    if part == "predictive" and catalogue.name_of(operators) != part:
        raise UsageError('`rerank="predictive"` needs a cross-encoder, and this server has none.')


def check_documents(reading: ReadingOptions, limits: Limits) -> None:
    """Raise UsageError if a request reads, or chooses among, more passages than the limit."""
    for name, count in (("documents", reading.chosen_reader.hits), ("rerank", reading.candidates)):
        if count > limits.documents:
            among = " among candidates" if name == "rerank" else ""
            raise UsageError(f"`{name}`{among} must be at most {limits.documents} here, not {count:,}.")

"""How a request reads: the operator's settings, with what the request changes of them.

Knows records of options; knows nothing of HTTP or of how passages are found.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ralm.errors import UsageError
from ralm.options import Arguments, Declared
from ralm.protocols import WritingModel
from ralm.reading import ReadingOptions
from ralm.reading.plan import PlanOptions
from ralm.reading.sampling import GenerationOptions
from ralm.retrieval.dense.options import QUERY_TOKENS
from ralm.retrieval.options import RetrieverOptions
from ralm.serving.options import CHOICES, Limits, ServeOptions, Settings
from ralm.validation import check_length

UNLIMITED: Final = 1 << 30
"""The length of a model without a limit of positions."""
_UNKNOWN_LENGTH: Final = 2048
"""How many tokens such a model reads at once."""
_ARGUMENTS: Final = Arguments({PlanOptions: ("max_length", "windows", "semantics", "block", "bos")})
_OWN: Final = ("index", "query", "gain")
"""Choices that no record of options has."""
PLAIN: Final = "plain"
"""What stands in the place of an index in the name of the model without passages."""


def choices() -> dict[str, Declared]:
    """The declarations of what a request may choose, by name, except those that only a request has."""
    known = _ARGUMENTS.of(Settings)
    return {name: known[name] for name in CHOICES if name not in _OWN}


def settings_of(retrieval: RetrieverOptions, reading: ReadingOptions, plan: PlanOptions) -> Settings:
    """The settings that these records make up, of an index that is named later."""
    return Settings(retrieval=retrieval, reading=reading, plan=plan)


def fitted(settings: Settings, model: WritingModel, max_length: int | None) -> Settings:
    """The settings with the length that the model reads, by default its own.

    Raises UsageError if the model is shorter, or if passages do not fit into it.
    """
    length = max_length or (_UNKNOWN_LENGTH if model.max_length >= UNLIMITED else model.max_length)
    check_length(model, length)
    plan = settings.plan
    if settings.index is None:  # nothing is put in front
        half = max(1, length // 2)
        plan = replace(plan, document_tokens=min(plan.document_tokens, half), stride=min(plan.stride, half))
    settings = replace(settings, plan=replace(plan, max_length=length))
    if settings.index is not None:
        check_room(settings)
    return settings


def check_room(settings: Settings) -> None:
    """Raise UsageError if the passages of a context and a stride do not fit into the model."""
    settings.plan.check_documents(getattr(settings.reading.chosen_reader, "joined", 1))


def indexes_by_model(
    name: str, settings: Settings, options: ServeOptions, indexes: Sequence[str]
) -> dict[str, str | None]:
    """The index that each name of the model reads, None for none: NAME the default one; if requests may choose it,
    also NAME:INDEX and NAME:plain, for clients that choose nothing but a model."""
    found = {name: settings.index}
    if indexes and "index" in options.allow:
        found |= {f"{name}:{index}": index for index in indexes} | {f"{name}:{PLAIN}": None}
    return found


def changed(settings: Settings, choice: Mapping[str, Any], options: ServeOptions, indexes: tuple[str, ...]) -> Settings:
    """The settings with what a request chooses, by name.

    Raises UsageError if the operator does not allow a choice, there is no such index, a choice has no effect, or the
    values do not go together.
    """
    for name in choice:
        if name not in options.allow:
            allowed = ", ".join(name for name in options.allow if name != "none") or "none"
            raise UsageError(f"`{name}` may not be chosen here; a request may choose: {allowed}.")
    index = choice.get("index", settings.index)
    if index is not None and index not in indexes:
        raise UsageError(f"`index` {index!r} is not served; there is: {', '.join(indexes) or 'none'}.")
    values = {name: value for name, value in choice.items() if name not in _OWN}
    if values.get("rerank") == "predictive" and settings.reading.reranking.cross_encoder is None:
        raise UsageError('`rerank="predictive"` needs a cross-encoder, and the operator named none.')
    settings = _ARGUMENTS.changed(replace(settings, index=index), values)
    if index is None:
        idle = [name for name in choice if name != "index"]
        if idle:
            raise UsageError(f"`{idle[0]}` does nothing here: it goes with an `index`.")
        return settings
    _ARGUMENTS.refuse_idle(settings, values)
    if "retriever" in values and "query_tokens" not in values:
        tokens = QUERY_TOKENS if settings.retrieval.is_dense else PlanOptions().query_tokens
        settings = replace(settings, plan=replace(settings.plan, query_tokens=tokens))
    check_documents(settings.reading, options.limits)
    return settings


def check_documents(reading: ReadingOptions, limits: Limits) -> None:
    """Raise UsageError if more passages are read or chosen from than a request may have."""
    for name, count in (("documents", reading.chosen_reader.hits), ("candidates", reading.reranking.candidates)):
        if count > limits.documents and (name == "documents" or reading.reranks):
            raise UsageError(f"`{name}` must be at most {limits.documents} here, not {count:,}.")


def generation_of(settings: Settings, **sampling: Any) -> GenerationOptions:
    """How a text is continued as `ralm generate` does, with these options of sampling and stopping."""
    plan = settings.plan
    return GenerationOptions(
        stride=plan.stride,
        query_tokens=plan.query_tokens,
        document_tokens=plan.document_tokens,
        max_length=plan.max_length,
        bos=plan.bos,
        **sampling,
    )

"""The options of ralm as a model of lm-evaluation-harness, and its `model_args`, which set them by flat names."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final

from ralm.errors import UsageError
from ralm.lm.api.endpoint import ApiOptions, is_api
from ralm.lm.registry import ModelOptions
from ralm.options import Arguments, Needs, Option, check_options, coerce
from ralm.reading import ReadingOptions
from ralm.reading.mixers import MixerOptions
from ralm.reading.plan import PlanOptions
from ralm.removed import removal_of
from ralm.retrieval.dense.options import QUERY_TOKENS
from ralm.retrieval.retriever import RetrieverOptions
from ralm.validation import MAX_COUNT

_INDEX: Final = Needs("`index`", lambda options: options.index is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessOptions:
    """The language model that the harness evaluates, and its passages.

    `max_length` None is the model's own. `question_field` None is the first of the usual names that a document has (see
    `ralm.harness.requests`). `batch_size` None is as many as fit into 32 texts, documents counted.

    Raises UsageError if options do not go together.
    """

    lm: Annotated[str, Option("Causal language model: a hub name, local folder, GGUF file, ralm-tiny, or smollm2.")]
    index: Annotated[Path | None, Option("Read with passages from this index.")] = None
    retrieval: Annotated[RetrieverOptions, Option("How passages are retrieved.", needs=_INDEX)] = field(
        default_factory=RetrieverOptions
    )
    reading: Annotated[ReadingOptions, Option("How passages are read.", needs=_INDEX)] = field(
        default_factory=ReadingOptions
    )
    plan: Annotated[PlanOptions, Option("What is read.", needs=_INDEX)] = field(
        default_factory=lambda: PlanOptions(max_length=MAX_COUNT)
    )
    max_length: Annotated[
        int | None,
        Option("Maximum number of tokens that the model reads at once, passage included.", default_text="the model's"),
    ] = None
    question_field: Annotated[
        str | None,
        Option("Field of a task's documents that holds the question.", default_text="the usual names", needs=_INDEX),
    ] = None
    batch_size: Annotated[
        int | None, Option("Contexts that are continued together; auto: as fit.", default_text="auto")
    ] = None
    max_batch_size: Annotated[
        int | None,
        Option(
            "Most contexts of a batch.", needs=Needs("`batch_size=auto`", lambda options: options.batch_size is None)
        ),
    ] = None
    model: Annotated[ModelOptions, Option("How the model runs.")] = field(default_factory=ModelOptions)

    def __post_init__(self) -> None:
        check_options(self)
        if self.reading.reader != "in-context" and self.index is None:
            raise UsageError(f'`reader="{self.reading.reader}"` reads passages: give `index` too.')
        self.reading.parts().require_average("a task of the harness")
        if self.model.api.dry_run:
            raise UsageError("`dry_run` would give the harness figures that mean nothing: leave it out.")
        if not is_api(self.lm) and self.model.api != ApiOptions():
            raise UsageError(f"{self.lm} runs here: leave out the arguments of models behind an API.")


_ARGUMENTS: Final = Arguments(
    {
        PlanOptions: ("max_length",),
        ReadingOptions: ("reranking", "rerank_lm"),
        MixerOptions: ("contrast",),
        ModelOptions: ("template_arguments",),
    }
)
"""Options that the harness lacks, or has elsewhere, are left out."""


def argument_types() -> dict[str, Any]:
    """The types of the values of all arguments, by name."""
    return _ARGUMENTS.kinds(HarnessOptions)


def parse_arguments(given: Mapping[str, Any]) -> HarnessOptions:
    """The options of the harness's arguments; None is the default. `pretrained`, the name that other models of the
    harness have for `lm`, is read as `lm`, and a batch size may be text, as the harness's command line gives it.

    Raises UsageError if an argument is unknown, has a value of another type or no effect, and the errors of options.
    """
    given = {name: value for name, value in given.items() if value is not None}
    if "lm" in given and "pretrained" in given:
        raise UsageError("`lm` and `pretrained` both name the language model: give one of them.")
    given = {"lm" if name == "pretrained" else name: value for name, value in given.items()}
    known = argument_types()
    for name in given:
        if name not in known:
            raise UsageError(removal_of(name) or f"ralm has no argument `{name}`: {_instead(name, [*known])}.")
    values = {name: coerce(name, known[name], value) for name, value in _without_auto_batch(given).items()}
    if "lm" not in values:
        raise UsageError("ralm needs the argument `lm`: the language model to evaluate, a hub name or a folder.")
    options = _ARGUMENTS.changed(HarnessOptions(lm=values["lm"]), values)
    _ARGUMENTS.reject_unused(options, values)
    if options.retrieval.is_dense and "query_tokens" not in values:
        return replace(options, plan=replace(options.plan, query_tokens=QUERY_TOKENS))
    return options


def _without_auto_batch(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without a batch size of `auto` or `auto:N`, and with one in digits as a number."""
    size = str(given.get("batch_size"))
    if size.partition(":")[0] == "auto":
        return {name: value for name, value in given.items() if name != "batch_size"}
    return {**given, "batch_size": int(size)} if size.isascii() and size.isdigit() else dict(given)


def _instead(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"the nearest is `{close[0]}`" if close else f"its arguments are {', '.join(known)}"

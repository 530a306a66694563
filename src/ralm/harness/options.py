"""The options of ralm as a model of lm-evaluation-harness, and its `model_args`, which set them by flat names."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from ralm.errors import UsageError
from ralm.grammar import as_text
from ralm.options import Needs, Option, check_options
from ralm.reading.plan import PlanOptions
from ralm.settings import INDEX_GIVEN, PlannedOptions, read_settings
from ralm.validation import MAX_COUNT


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessOptions(PlannedOptions):
    """The language model that the harness evaluates, and its passages; UsageError if options do not go together."""

    plan: Annotated[PlanOptions, Option("What is read.", needs=INDEX_GIVEN, without=("max_length",))] = field(
        default_factory=lambda: PlanOptions(max_length=MAX_COUNT)
    )
    max_length: Annotated[
        int | None,
        Option("Maximum number of tokens that the model reads at once, passage included.", default_text="the model's"),
    ] = None
    question_field: Annotated[
        str | None,
        Option(
            "Field of a task's documents that holds the question.", default_text="the usual names", needs=INDEX_GIVEN
        ),
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

    def __post_init__(self) -> None:
        check_options(self)
        self.check_source()
        self.reading.parts().require_average("a task of the harness")
        self.model.check_effect(self.lm)


def parse_arguments(arguments: Mapping[str, Any]) -> HarnessOptions:
    """Return the options of the harness's arguments; None is the default, and `pretrained` is read as `lm`."""
    texts = {name: as_text(value) for name, value in arguments.items() if value is not None}
    if "lm" in texts and "pretrained" in texts:
        raise UsageError("`lm` and `pretrained` both name the language model: give one of them.")
    if name := texts.pop("pretrained", None):
        texts["lm"] = name
    if texts.get("batch_size", "").partition(":")[0] == "auto":
        del texts["batch_size"]
    device = texts.pop("device", None)
    options = read_settings(HarnessOptions, texts, "the model ralm")
    if device is not None:
        if options.model.device != "auto":
            raise UsageError("`device` stands in `lm_args`, too: give one of them.")
        return replace(options, model=replace(options.model, device=device))
    return options

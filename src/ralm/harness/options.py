"""The options of ralm as a model of lm-evaluation-harness: its `model_args`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from ralm.errors import UsageError
from ralm.lm.api.endpoint import is_api
from ralm.lm.api.options import ApiOptions
from ralm.lm.options import ModelOptions
from ralm.options import Needs, Option, check_options
from ralm.reading import ReadingOptions
from ralm.reading.plan import PlanOptions
from ralm.retrieval.retriever import RetrieverOptions
from ralm.validation import MAX_COUNT

_INDEX: Final = Needs("`index`", lambda options: options.index is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessOptions:
    """Which language model the harness evaluates, and with which passages.

    `max_length` None is the model's own. `question_field` None is the first of the usual names that a document has (see
    `ralm.harness.queries`). `batch_size` None is as many as fit into 32 texts, documents counted.

    Raises UsageError if options do not go together.
    """

    lm: Annotated[str, Option("Causal language model: a hub name, a local folder, or ralm-tiny.")]
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
        int | None, Option("Most tokens that the model reads at once, passage included.", default_text="the model's")
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
        if self.model.api.dry_run:
            raise UsageError("`dry_run` would give the harness figures that mean nothing: leave it out.")
        if not is_api(self.lm) and self.model.api != ApiOptions():
            raise UsageError(f"{self.lm} runs here: leave out the arguments of models behind an API.")

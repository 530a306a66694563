"""What commands that ask questions have in common: a language model, and where the passages of questions come from."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ralm.cli import options
from ralm.cli.flags import Flags
from ralm.options import Needs, Option, check_options
from ralm.reading import ReadingOptions
from ralm.retrieval.retriever import RetrieverOptions

if TYPE_CHECKING:
    from ralm.answering.sources import QuestionSource
    from ralm.reading.sources import FromRetriever


@dataclass(frozen=True, slots=True, kw_only=True)
class AskingJob:
    """Which model is asked, and with which passages.

    Raises UsageError if options do not go together.
    """

    lm: options.Model
    index: Annotated[Path | None, Option("Read with passages from this index.")] = None
    retrieved: Annotated[Path | None, Option("Read with the passages in this file: questions with `ctxs`.")] = None
    retrieval: Annotated[
        RetrieverOptions,
        Option("How passages are retrieved.", needs=Needs("`index`", lambda job: job.index is not None)),
    ] = field(default_factory=RetrieverOptions)
    reading: Annotated[ReadingOptions, Option("How passages are read."), Flags(without=options.RERANKING)] = field(
        default_factory=ReadingOptions
    )
    ray: options.Ray = None

    def __post_init__(self) -> None:
        check_options(self)
        options.check_sources(self.index, self.retrieved, self.reading)

    @property
    def has_passages(self) -> bool:
        """Whether passages are read."""
        return bool(self.index or self.retrieved)

    def retriever(self) -> "FromRetriever | None":
        """What searches the index, if there is one."""
        from ralm.reading.sources import FromRetriever

        return None if self.index is None else FromRetriever.of_index(self.index, self.retrieval)

    def source(
        self, found: "FromRetriever | None", given: "Callable[[Path], QuestionSource]"
    ) -> "QuestionSource | None":
        """Where passages come from: what searches the index, or the file of passages, read by `given`."""
        from ralm.answering.sources import AskedRetriever

        if self.retrieved is not None:
            return given(self.retrieved)
        return None if found is None else AskedRetriever(found)

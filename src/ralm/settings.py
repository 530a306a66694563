"""The settings of a pipeline: the language model, the index of its passages, and the parts by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, TypeVar

from ralm.errors import UsageError
from ralm.grammar import read_keys
from ralm.lm.registry import ModelOptions
from ralm.options import Option
from ralm.reading import READERS, ReadingOptions
from ralm.reading.mixture import MIXERS
from ralm.reading.plan import DENSE_QUERY_TOKENS, PlanOptions
from ralm.reranking import RERANKERS
from ralm.retrieval.retriever import RETRIEVERS, RetrieverOptions

CATALOGUES: Final = {"retriever": RETRIEVERS, "rerank": RERANKERS, "reader": READERS, "mixer": MIXERS}
"""The parts that have a name, by option."""
LM: Final = (
    "Causal language model: a hub name, local folder, GGUF file, ralm-tiny, smollm2, URL#MODEL of an API, or "
    "module:Class."
)
LM_ARGS: Final = Option(
    "How the model runs, such as dtype=bfloat16,device=cuda; `ralm help lm-args` lists the keys.",
    flag="lm-args",
    part="keys",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """What `open_pipeline` puts together."""

    lm: Annotated[str, Option(LM)]
    index: Annotated[Path | None, Option("Read with passages from this index.")] = None
    retrieval: Annotated[RetrieverOptions, Option("How passages are retrieved.")] = field(
        default_factory=RetrieverOptions
    )
    reading: Annotated[ReadingOptions, Option("How passages are read.")] = field(default_factory=ReadingOptions)
    model: Annotated[ModelOptions, LM_ARGS] = field(default_factory=ModelOptions)

    @property
    def retrieves(self) -> bool:
        """Whether passages are found for queries, in an index or by a search service."""
        return self.index is not None or self.retrieval.is_service

    def check_source(self, file: object = None) -> None:
        """Raise UsageError if there are two sources of passages, `file` too, or none for parts that read them."""
        if self.index and file:
            raise UsageError("`index` and `retrieved` are two sources of passages: give one of them.")
        if self.retrieval.is_service and (self.index or file):
            other = "index" if self.index else "retrieved"
            raise UsageError(f"`{other}` and a search service as `retriever` have passages: give one of them.")
        if not self.retrieves and self.retrieval != RetrieverOptions():
            raise UsageError("`retriever`, `where` and the like choose passages of an index: give `index`.")
        if not (self.retrieves or file) and self.reading != ReadingOptions():
            raise UsageError(
                "`reader`, `documents`, `mixer` and `rerank` read passages: give `index` or another source."
            )
        self.reading.check_mixer()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOptions(PipelineOptions):
    """The same with the plan of a text."""

    plan: Annotated[PlanOptions, Option("What is read for a stride.")] = field(default_factory=PlanOptions)


def part_texts(retrieval: RetrieverOptions, reading: ReadingOptions) -> dict[str, str]:
    """Return the text of each part, by option."""
    return {
        "retriever": retrieval.retriever,
        "rerank": reading.rerank,
        "reader": reading.full_reader,
        "mixer": reading.mixer,
    }


_Planned = TypeVar("_Planned", bound=PlannedOptions)


def read_settings(record: type[_Planned], texts: Mapping[str, str], title: str) -> _Planned:
    """Return the settings with the papers' query length for the retriever; a UsageError begins with the `title`."""
    options = read_keys(record, texts, title)
    options.plan.check_block()
    if options.retrieval.is_dense and "query_tokens" not in texts:
        return replace(options, plan=replace(options.plan, query_tokens=DENSE_QUERY_TOKENS))
    return options

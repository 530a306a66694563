"""Steps: the commands that a recipe runs, and how one reads what another made.

A step is a command line of which some arguments are other steps or resources. So a recipe is a graph, and equal steps
of several recipes are one. The functions below make steps from the option records of the library; nothing is an option
of recipes alone. Knows no folder and runs nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ralm.answering.options import AnswerOptions, AnswerSemantics, ChoiceOptions
from ralm.corpus.splitting import Splitting
from ralm.options import flags_of
from ralm.reading import ReadingOptions
from ralm.reading.plan import PlanOptions
from ralm.recipes.resources import Resource
from ralm.reranking import RerankOptions
from ralm.retrieval.dense.options import EncoderOptions
from ralm.retrieval.retriever import RetrieverOptions
from ralm.training.options import (
    REPLUG,
    REPLUG_EXAMPLES,
    CandidateOptions,
    ExampleOptions,
    RerankerOptions,
    RetrieverTrainingOptions,
    TrainingOptions,
)

Command = Literal["index", "retrieve", "eval", "signals", "train reranker", "train retriever", "qa", "curve", "choice"]


@dataclass(frozen=True, slots=True)
class Step:
    """A command without its `--out`, which is a folder, or a file for `retrieve`."""

    command: Command
    arguments: "tuple[Argument, ...]"

    @property
    def makes_file(self) -> bool:
        """Whether it writes one file instead of a folder."""
        return self.command == "retrieve"

    @property
    def steps(self) -> "Iterator[Step]":
        """The steps whose results it reads."""
        for one in self.arguments:
            if isinstance(one, Step):
                yield one
            elif isinstance(one, NameOf):
                yield one.step

    @property
    def resources(self) -> Iterator[Resource]:
        """The resources that it reads itself."""
        yield from (one for one in self.arguments if isinstance(one, Resource))


@dataclass(frozen=True, slots=True)
class NameOf:
    """The name of the folder of a step: that of the vectors which `ralm train retriever` adds to its index."""

    step: Step


Argument: TypeAlias = str | Resource | Step | NameOf


def in_order(wanted: Sequence[Step]) -> list[Step]:
    """The steps and all that they need, each once and after what it needs."""
    found: dict[Step, None] = {}

    def add(step: Step) -> None:
        if step not in found:
            for needed in step.steps:
                add(needed)
            found[step] = None

    for step in wanted:
        add(step)
    return [*found]


def index_step(
    corpus: Resource,
    *,
    splitting: Splitting | None = None,
    tokens_of: Resource | None = None,
    titles: Resource | None = None,
    encoding: EncoderOptions | None = None,
    encoder: Resource | Step | None = None,
    query_encoder: Resource | None = None,
) -> Step:
    """An index of a corpus for BM25; with an `encoder`, for dense retrieval. Documents with `titles` are left out.

    `tokens_of` is the model whose tokens passages are measured in. `encoding` tells all of the encoder but its name.
    """
    arguments: list[Argument] = [corpus, *flags_of(splitting or Splitting(), Splitting())]
    arguments += _given("--lm", tokens_of) + _given("--forbidden-titles", titles)
    if encoder is not None:
        plain = EncoderOptions(encoder="")
        arguments += ["--retriever", "dense", "--encoder", encoder, *_given("--query-encoder", query_encoder)]
        arguments += flags_of(encoding or plain, plain)
    return Step("index", tuple(arguments))


def retrieve_step(
    text: Resource,
    lm: Resource,
    index: Step,
    plan: PlanOptions,
    *,
    k: int,
    retrieval: RetrieverOptions | None = None,
    vectors: Step | None = None,
    limit_tokens: int | None = None,
) -> Step:
    """The best passages for every stride of a text; `lm` decides the tokens. `vectors`: search those that the training
    of a retriever added to the index."""
    retrieval = retrieval or RetrieverOptions()
    always = ("query_tokens",) if retrieval.is_dense else ()
    unread = PlanOptions(document_tokens=0)
    arguments: list[Argument] = [text, "--lm", lm, "--index", index, "-k", str(k)]
    arguments += flags_of(retrieval, RetrieverOptions())
    arguments += ["--vectors", NameOf(vectors)] if vectors else []
    plan_flags = flags_of(replace(plan, document_tokens=0), unread, always)
    return Step("retrieve", (*arguments, *plan_flags, *_limit(limit_tokens)))


def eval_step(
    text: Resource,
    lm: Resource,
    plan: PlanOptions,
    *,
    index: Step | None = None,
    retrieved: Step | None = None,
    retrieval: RetrieverOptions | None = None,
    reading: ReadingOptions | None = None,
    reranker: Step | None = None,
    candidates: int = RerankOptions().candidates,
    rerank_lm: Resource | None = None,
    limit_tokens: int | None = None,
) -> Step:
    """A text that a model reads, with passages of an index, with those that were retrieved, or without.

    A `reranker` that was trained chooses among `candidates`.
    """
    retrieval = retrieval or RetrieverOptions()
    arguments: list[Argument] = [text, "--lm", lm, *_given("--index", index), *_given("--retrieved", retrieved)]
    arguments += flags_of(retrieval, RetrieverOptions()) if index else []
    arguments += flags_of(reading or ReadingOptions(), ReadingOptions())
    if reranker is not None:
        chosen = RerankOptions(method="predictive", cross_encoder="", candidates=candidates)
        arguments += flags_of(chosen, replace(RerankOptions(), cross_encoder="")) + _given("--reranker", reranker)
    arguments += _given("--rerank-lm", rerank_lm)
    if index is None and plan.windows != "rolling":  # no query is asked
        plan = replace(plan, query_tokens=PlanOptions().query_tokens)
    always = ("query_tokens",) if index and retrieval.is_dense else ()
    return Step("eval", (*arguments, *flags_of(plan, PlanOptions(), always), *_limit(limit_tokens)))


def signals_step(
    corpus: Resource,
    lm: Resource,
    index: Step,
    *,
    examples: ExampleOptions,
    candidates: CandidateOptions | None = None,
    retrieval: RetrieverOptions | None = None,
) -> Step:
    """What a model makes of retrieved passages in examples from a corpus."""
    retrieval = retrieval or RetrieverOptions()
    arguments: list[Argument] = [corpus, "--lm", lm, "--index", index]
    arguments += flags_of(examples, ExampleOptions(), ("query_tokens",) if retrieval.is_dense else ())
    arguments += flags_of(candidates or CandidateOptions(), CandidateOptions())
    return Step("signals", (*arguments, *flags_of(retrieval, RetrieverOptions())))


def train_reranker_step(
    signals: Step,
    init: Resource,
    *,
    training: TrainingOptions | None = None,
    reading: RerankerOptions | None = None,
) -> Step:
    """A cross-encoder that learns from signals (In-Context RALM, section 6.2)."""
    arguments: list[Argument] = [signals, "--init", init]
    arguments += flags_of(reading or RerankerOptions(), RerankerOptions())
    return Step("train reranker", (*arguments, *flags_of(training or TrainingOptions(), TrainingOptions())))


def train_retriever_step(
    corpus: Resource,
    lm: Resource,
    index: Step,
    *,
    both: RetrieverTrainingOptions,
    training: TrainingOptions,
    examples: ExampleOptions,
) -> Step:
    """A retriever that learns from a model (REPLUG LSR): both encoders, with passages that are encoded again."""
    arguments: list[Argument] = [corpus, "--lm", lm, "--index", index]
    arguments += flags_of(both, RetrieverTrainingOptions()) + flags_of(training, REPLUG)
    return Step("train retriever", (*arguments, *flags_of(examples, REPLUG_EXAMPLES)))


def qa_step(
    questions: Resource,
    lm: Resource,
    *,
    index: Step | None = None,
    retrieval: RetrieverOptions | None = None,
    reading: ReadingOptions | None = None,
    demonstrations: Resource | None = None,
    shots: int | None = None,
    prompt: str | None = None,
    answering: AnswerOptions | None = None,
    numbers: Sequence[int] | None = None,
    semantics: AnswerSemantics = "paper",
    limit: int | None = None,
) -> Step:
    """Questions that a model answers; with `numbers`, with several numbers of passages (`ralm curve`)."""
    arguments: list[Argument] = [questions, "--lm", lm, *_given("--index", index)]
    arguments += flags_of(retrieval or RetrieverOptions(), RetrieverOptions()) if index else []
    arguments += flags_of(reading or ReadingOptions(), ReadingOptions())
    arguments += _given("--demonstrations", demonstrations) + _number("--shots", shots)
    arguments += ["--prompt", prompt] if prompt else []
    arguments += [] if semantics == "paper" else ["--semantics", semantics]
    arguments += flags_of(answering or AnswerOptions(), AnswerOptions())
    arguments += ["--numbers", ",".join(map(str, numbers))] if numbers else []
    return Step("curve" if numbers else "qa", (*arguments, *_number("--limit", limit)))


def choice_step(
    questions: Resource,
    lm: Resource,
    *,
    demonstrations: Resource,
    shots: int,
    index: Step | None = None,
    retrieval: RetrieverOptions | None = None,
    reading: ReadingOptions | None = None,
    choosing: ChoiceOptions | None = None,
    prompt: str | None = None,
    limit: int | None = None,
) -> Step:
    """Multiple choice."""
    arguments: list[Argument] = [questions, "--lm", lm, *_given("--index", index)]
    arguments += flags_of(retrieval or RetrieverOptions(), RetrieverOptions()) if index else []
    arguments += flags_of(reading or ReadingOptions(), ReadingOptions())
    arguments += ["--prompt", prompt] if prompt else []
    arguments += ["--demonstrations", demonstrations, "--shots", str(shots)]
    arguments += flags_of(choosing or ChoiceOptions(), ChoiceOptions())
    return Step("choice", (*arguments, *_number("--limit", limit)))


def _given(flag: str, value: "Resource | Step | None") -> list[Argument]:
    return [] if value is None else [flag, value]


def _number(flag: str, value: int | None) -> list[Argument]:
    return [] if value is None else [flag, str(value)]


def _limit(tokens: int | None) -> list[Argument]:
    return _number("--limit-tokens", tokens)

"""The commands that recipes run, as a graph: some arguments of a step are other steps or resources.

Equal steps of several recipes are one. The functions below make steps from the option records of the library.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, TypeVar

from ralm.answering.options import AnswerOptions, AnswerSemantics
from ralm.corpus.splitting import Splitting
from ralm.grammar import keys_text
from ralm.options import flags_of
from ralm.reading import ReadingOptions
from ralm.reading.plan import PlanOptions
from ralm.recipes.resources import Resource
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

Command = Literal["index", "retrieve", "eval", "signals", "train reranker", "train retriever", "qa"]
_Record = TypeVar("_Record")

_BM25 = RetrieverOptions()
_PLAN = PlanOptions()
FIRST_PASSAGE = ReadingOptions()
_SENTENCES = Splitting()
_ENCODING = EncoderOptions(encoder="")
"""The encoder itself is an argument: a resource, or the step that trains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """How much a step reads, where no option record says it; None is all. `numbers` are those of passages that are
    compared."""

    k: int = 1
    limit_tokens: int | None = None
    limit: int | None = None
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """A command without its `--out`, which is a folder, or a file for `retrieve`.

    `options` are the records that its flags were made of, for estimates. They don't identify a step.
    """

    command: Command
    arguments: "tuple[Argument, ...]"
    options: tuple[object, ...] = field(default=(), compare=False, repr=False)

    @property
    def steps(self) -> "Iterator[Step]":
        """The steps whose results it reads."""
        for one in self._values:
            if isinstance(one, Step):
                yield one
            elif isinstance(one, NameOf):
                yield one.step

    @property
    def resources(self) -> Iterator[Resource]:
        """The resources that it reads itself."""
        yield from (one for one in self._values if isinstance(one, Resource))

    @property
    def _values(self) -> "Iterator[Argument]":
        """The arguments, and in place of a part the value of its last key."""
        return (one.value if isinstance(one, Keyed) else one for one in self.arguments)

    def resource(self, *kinds: str) -> Resource:
        """The first resource of one of these kinds."""
        return next(one for one in self.resources if one.kind in kinds)

    def has(self, record: type) -> bool:
        """Whether its flags come from a record of this type."""
        return any(isinstance(one, record) for one in self.options)

    def option(self, record: type[_Record]) -> _Record:
        """Its option record of this type."""
        return next(one for one in self.options if isinstance(one, record))


@dataclass(frozen=True, slots=True)
class NameOf:
    """The name of the folder of a step: that of the vectors which `ralm train retriever` adds to its index."""

    step: Step


@dataclass(frozen=True, slots=True)
class Keyed:
    """A part whose last key has a resource or a step as its value: `predictive:cross_encoder=` and a trained one."""

    text: str
    value: "Resource | Step | NameOf"


Argument: TypeAlias = str | Resource | Step | NameOf | Keyed


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
    splitting: Splitting = _SENTENCES,
    tokens_of: Resource | None = None,
    titles: Resource | None = None,
    encoding: EncoderOptions = _ENCODING,
    encoder: Resource | Step | None = None,
    query_encoder: Resource | None = None,
) -> Step:
    """Indexes a corpus for BM25; with an `encoder`, for dense retrieval. Documents with `titles` are left out.

    `tokens_of` is the model whose tokens passages are measured in. `encoding` holds all of the encoder but its name.
    """
    arguments = [corpus, *flags_of(splitting, _SENTENCES), *_given(lm=tokens_of, forbidden_titles=titles)]
    if encoder is None:
        return Step("index", tuple(arguments), (splitting,))
    arguments += _given(retriever="dense", encoder=encoder)
    keys: Argument = keys_text(encoding, _ENCODING)
    if query_encoder is not None:
        keys = Keyed(f"{keys},query_encoder=".lstrip(","), query_encoder)
    arguments += ["--encoder-args", keys] if keys else []
    return Step("index", tuple(arguments), (splitting, encoding))


def retrieve_step(
    text: Resource,
    lm: Resource,
    index: Step,
    plan: PlanOptions,
    *,
    k: int,
    retrieval: RetrieverOptions = _BM25,
    vectors: Step | None = None,
    limit_tokens: int | None = None,
) -> Step:
    """Retrieves the k best passages for every stride of a text; `lm` decides the tokens. `vectors`: search those that
    the training of a retriever added to the index."""
    retriever = Keyed(f"{retrieval.retriever}:vectors=", NameOf(vectors)) if vectors else None
    searched = ["--retriever", retriever] if retriever else flags_of(retrieval, _BM25)
    arguments: list[Argument] = [text, *_given(lm=lm, index=index), "-k", str(k), *searched]
    unread, base = replace(plan, document_tokens=0), replace(_PLAN, document_tokens=0)
    arguments += flags_of(unread, base, ("query_tokens",) if retrieval.is_dense else ())
    arguments += _given(limit_tokens=limit_tokens)
    return Step("retrieve", tuple(arguments), (plan, retrieval, Amounts(k=k, limit_tokens=limit_tokens)))


def eval_step(
    text: Resource,
    lm: Resource,
    plan: PlanOptions,
    *,
    retrieved: Step | None = None,
    reading: ReadingOptions = FIRST_PASSAGE,
    ranker: Step | Resource | None = None,
    limit_tokens: int | None = None,
) -> Step:
    """Scores a text with a model, with the passages that were retrieved, or without.

    `ranker` is the value of the last key of the reranker of `reading`: a trained cross-encoder, or a model.
    """
    read = replace(reading, rerank="none") if ranker else reading
    arguments: list[Argument] = [text, *_given(lm=lm, retrieved=retrieved), *flags_of(read, FIRST_PASSAGE)]
    arguments += ["--rerank", Keyed(reading.rerank, ranker)] if ranker else []
    if plan.windows != "rolling":  # passages were retrieved before, so the length of queries has no effect
        plan = replace(plan, query_tokens=_PLAN.query_tokens)
    arguments += [*flags_of(plan, _PLAN), *_given(limit_tokens=limit_tokens)]
    return Step("eval", tuple(arguments), (plan, reading, Amounts(limit_tokens=limit_tokens)))


def signals_step(
    corpus: Resource, lm: Resource, index: Step, *, examples: ExampleOptions, candidates: CandidateOptions
) -> Step:
    """Scores retrieved passages with a model, in examples from a corpus."""
    flags = flags_of(examples, ExampleOptions()) + flags_of(candidates, CandidateOptions())
    return Step("signals", (corpus, *_given(lm=lm, index=index), *flags), (examples, candidates))


def train_reranker_step(signals: Step, init: Resource, *, training: TrainingOptions, reading: RerankerOptions) -> Step:
    """Trains a cross-encoder on signals (In-Context RALM, section 6.2)."""
    flags = flags_of(reading, RerankerOptions()) + flags_of(training, TrainingOptions())
    return Step("train reranker", (signals, "--init", init, *flags), (training, reading))


def train_retriever_step(
    corpus: Resource,
    lm: Resource,
    index: Step,
    *,
    both: RetrieverTrainingOptions,
    training: TrainingOptions,
    examples: ExampleOptions,
) -> Step:
    """Trains both encoders of a retriever from a model (REPLUG LSR); passages are encoded again meanwhile."""
    flags = flags_of(both, RetrieverTrainingOptions()) + flags_of(training, REPLUG)
    flags += flags_of(examples, REPLUG_EXAMPLES)
    return Step("train retriever", (corpus, *_given(lm=lm, index=index), *flags), (both, training, examples))


def qa_step(
    questions: Resource,
    lm: Resource,
    *,
    index: Step | None = None,
    retrieval: RetrieverOptions = _BM25,
    reading: ReadingOptions = FIRST_PASSAGE,
    demonstrations: Resource | None = None,
    shots: int | None = None,
    prompt: str | None = None,
    answering: AnswerOptions | None = None,
    numbers: tuple[int, ...] = (),
    semantics: AnswerSemantics = "paper",
    limit: int | None = None,
) -> Step:
    """Answers questions or multiple choice; with `numbers`, with several numbers of passages."""
    reading = reading if index else FIRST_PASSAGE
    arguments = [questions, *_given(lm=lm, index=index), *flags_of(retrieval if index else _BM25, _BM25)]
    arguments += [*flags_of(reading, FIRST_PASSAGE), *_given(demonstrations=demonstrations, shots=shots, prompt=prompt)]
    arguments += _given(semantics=None if semantics == "paper" else semantics)
    arguments += flags_of(answering, AnswerOptions()) if answering else []
    arguments += _given(over=f"documents={','.join(map(str, numbers))}" if numbers else None, limit=limit)
    return Step("qa", tuple(arguments), (reading, Amounts(limit=limit, numbers=numbers)))


def _given(**values: Argument | int | None) -> list[Argument]:
    """The flags of the values that are given."""
    flags: list[Argument] = []
    for name, value in values.items():
        if value is not None:
            flags += [f"--{name.replace('_', '-')}", str(value) if isinstance(value, int) else value]
    return flags

"""A language model whose copies on the machines of a cluster share the scoring and the answering of questions.

A machine answers the questions that are answered together on one machine, too. Its scores and answers go to where this
process keeps them; from there the answers are made, as after a run that was killed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, TypeVar, cast

from ralm.answering.answers import AnswerMethod, AnswerStores, groups_of
from ralm.answering.sources import QuestionInput
from ralm.distributed.cluster import MAX_CRASHES, Requirements
from ralm.distributed.workers import Loader, WorkerPool
from ralm.errors import ClusterError, RalmError, UsageError
from ralm.lm import TINY
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.local.tokenization import ModelTokenizer
from ralm.lm.named import ModelOptions, load_local_model, load_tokenizer
from ralm.lm.scoring import split_by_tokens
from ralm.protocols import Continuations, WritingModel
from ralm.records import FloatArray, ScoringSequence
from ralm.storage.store import Store

_Answered = TypeVar("_Answered", bound=tuple[Any, ...])
_Entries: TypeAlias = Sequence[tuple[bytes, bytes]]


class _NotKeptError(RalmError):
    """Something is not kept: the model would have to read."""


class _OnlyKept:
    """A model of which all is known already: it is not read, but raises _NotKeptError."""

    def __init__(self, model: WritingModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def score(self, _: Sequence[ScoringSequence]) -> NoReturn:
        raise _NotKeptError

    def continuations(self) -> Continuations:
        raise _NotKeptError


class _Work(NamedTuple):
    """A method of answering, and questions with their numbers, for a machine."""

    method: AnswerMethod[Any]
    inputs: Sequence[tuple[int, QuestionInput]]


def answer_on(
    machines: WorkerPool,
    loader: Loader[WritingModel],
    model: WritingModel,
    method: AnswerMethod[_Answered],
    inputs: Sequence[QuestionInput],
    stores: AnswerStores,
) -> Iterator[_Answered]:
    """The results of `method(inputs, model, stores)`, with the model that the loader loads on each machine; `model`
    describes it here.

    Raises ClusterError if a question ends the process that answers it again and again, or the cluster fails.
    """
    scores, answers = (Store() if one is None else one for one in (stores.scores, stores.answers))
    only: Any = _OnlyKept(model)

    def known(group: Sequence[int]) -> list[_Answered]:
        return [*method([inputs[number] for number in group], only, AnswerStores(scores, answers))]

    groups = [*groups_of(inputs)]
    new = [[number for number in group if not _is_known(known, [number])] for group in groups]
    work = [_Work(method, [(number, inputs[number]) for number in group]) for group in new if group]
    left = {number for one in work for number, _ in one.inputs}
    with closing(
        machines.run(
            loader, _answer_questions, work, name=_describe_questions, bad=_reject_questions, halves=_halve_questions
        )
    ) as done:
        for group in groups:
            while not left.isdisjoint(group):
                task, found = next(done)
                scores.put(found[0])
                answers.put(found[1])
                left -= {number for number, _ in task.inputs}
            for number, one in zip(group, known(group), strict=True):
                yield cast("_Answered", (number, *one[1:]))


def _answer_questions(model: WritingModel, work: _Work) -> tuple[_Entries, _Entries]:
    """Answer questions; returns the scores and the answers that a later process can go on with."""
    scores, answers = Store(), Store()
    for _ in work.method([one for _, one in work.inputs], model, AnswerStores(scores, answers)):
        pass
    return scores.items(), answers.items()


def _is_known(known: Callable[[Sequence[int]], object], group: Sequence[int]) -> bool:
    try:
        known(group)
    except _NotKeptError:
        return False
    return True


def _describe_questions(work: _Work) -> str:
    return f"answering {len(work.inputs)} questions from {work.inputs[0][1].question.id} on"


def _reject_questions(work: _Work) -> NoReturn:
    raise ClusterError(
        f"question {work.inputs[0][1].question.id} ends the process that answers it, each of {MAX_CRASHES} times; the "
        "machines may have too little memory."
    )


def _halve_questions(work: _Work) -> tuple[_Work, _Work] | None:
    middle = len(work.inputs) // 2
    return (_Work(work.method, work.inputs[:middle]), _Work(work.method, work.inputs[middle:])) if middle else None


PACKAGES: Final = ("torch", "transformers")
"""Packages whose versions decide what a model computes."""
_TOKENS: Final = {"cpu": 4096, "cuda": 1 << 18}
"""Tokens of the passes that a machine is handed at once: few enough that little is lost with it."""

_Chunk: TypeAlias = Sequence[tuple[int, ScoringSequence]]
"""Passes with their numbers."""


@dataclass(frozen=True)
class ModelLoader:
    """Loads a model by name on any machine that has what is `here`. A folder is read under its absolute path."""

    name: str
    options: ModelOptions
    here: Requirements

    @classmethod
    def of(cls, name: str, options: ModelOptions) -> "ModelLoader":
        """What loads the model on other machines as it is loaded here."""
        folder = [Path(name).absolute()] if name != TINY and Path(name).is_dir() else []
        return cls(name, options, Requirements.reading(folder, PACKAGES))

    @property
    def label(self) -> str:
        """What it loads, in messages."""
        return f"the model {self.name}"

    def __call__(self) -> LocalLanguageModel:
        """Load the model; raises ClusterError if this machine lacks something, and what `load_local_model` raises."""
        self.here.check()
        model = load_local_model(str(self.here.read[0]) if self.here.read else self.name, self.options)
        model.name = self.name
        return model

    def facts(self, model: LocalLanguageModel) -> dict[str, Any]:
        """What the process that has no copy of the model needs to know of it."""
        return {
            **model.config,
            "max_length": model.max_length,
            "vocabulary": model.vocabulary,
            "merges_prefixes": model.merges_prefixes,
            "end_tokens": model.end_tokens,
        }


class ClusterModel:
    """A local model whose copies are on the machines of a cluster, a `LanguageModel` with the same `config`.

    Log-probabilities are those of one machine, bit for bit, if processors are of one kind and actors have as many
    threads as it; on GPUs up to rounding, since which passes are read together differs.
    Raises ClusterError if machines have other versions or another model.
    """

    tier: Final = "all"

    def __init__(self, machines: WorkerPool, loader: ModelLoader) -> None:
        self.name = loader.name
        self.machines = machines
        self.loader = loader
        self._facts: dict[str, Any] = dict(machines.facts(loader))
        self.max_length: int = self._facts.pop("max_length")
        self.vocabulary: int = self._facts.pop("vocabulary")
        self.merges_prefixes: bool = self._facts.pop("merges_prefixes")
        self.end_tokens: frozenset[int] = self._facts.pop("end_tokens")

    @property
    def config(self) -> dict[str, Any]:
        """That of the same model on one machine."""
        return dict(self._facts)

    @cached_property
    def tokenizer(self) -> ModelTokenizer:
        """The tokenizer of the model, which works here."""
        tokenizer = load_tokenizer(self.name)
        if tokenizer.fingerprint != self._facts["tokenizer"]:
            raise ClusterError(
                f"{self.loader.label} has another tokenizer on this machine than on those of the cluster."
            )
        return tokenizer

    def score(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        """For each pass, in order, the natural log-probability (float32) of each of its targets.

        Raises ClusterError if a pass ends the process that reads it again and again, or the cluster fails.
        """
        tokens = _TOKENS["cuda" if self._facts["device"].startswith("cuda") else "cpu"]
        chunks = list(_chunks(passes, tokens))
        early: dict[int, FloatArray] = {}
        due = 0
        done = self.machines.run(self.loader, _score, chunks, name=self._said, bad=self._bad, halves=_halve_chunk)
        with closing(done):
            for chunk, found in done:
                early |= {number: log_probs for (number, _), log_probs in zip(chunk, found, strict=True)}
                while due in early:
                    yield early.pop(due)
                    due += 1

    def answer_remotely(
        self, method: AnswerMethod[_Answered], inputs: Sequence[QuestionInput], stores: AnswerStores
    ) -> Iterator[_Answered]:
        """The results of `method` with this model; raises what `answer_on` raises."""
        return answer_on(self.machines, self.loader, self, method, inputs, stores)

    def continuations(self) -> Continuations:
        """Raises UsageError: texts are not continued token by token between machines."""
        raise UsageError(f"{self.name} only scores texts on a cluster; it continues none.")

    def _said(self, chunk: _Chunk) -> str:
        return f"scoring {len(chunk)} texts of up to {len(chunk[0][1].tokens_N):,} tokens with {self.name}"

    def _bad(self, chunk: _Chunk) -> NoReturn:
        length = len(chunk[0][1].tokens_N)
        raise ClusterError(
            f"a text of {length:,} tokens ends the process in which {self.name} reads it, each of {MAX_CRASHES} times; "
            "the machines may have too little memory."
        )


def _score(model: LocalLanguageModel, chunk: _Chunk) -> list[FloatArray]:
    return list(model.score([one for _, one in chunk]))


def _halve_chunk(chunk: _Chunk) -> tuple[_Chunk, _Chunk] | None:
    middle = len(chunk) // 2
    return (chunk[:middle], chunk[middle:]) if middle else None


def _chunks(passes: Sequence[ScoringSequence], tokens: int) -> Iterator[_Chunk]:
    """Passes in order with their numbers, about so many tokens at a time."""
    numbered = enumerate(passes)
    return ([*islice(numbered, len(some))] for some in split_by_tokens(passes, tokens))

"""A language model whose copies on the machines of a cluster share the scoring and the answering of questions.

A machine answers the questions that are answered together on one machine, too. Its scores and answers go to where this
process keeps them; from there the answers are made, as after a run that was killed.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, cast

from ralm.answering.answers import AnsweredInput, answer_all, groups_of
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import QuestionPrompt
from ralm.answering.sources import QuestionInput
from ralm.distributed import cluster, workers
from ralm.errors import ClusterError, RalmError, UsageError
from ralm.lm import is_local
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.local.tokenization import ModelTokenizer
from ralm.lm.registry import ModelOptions, load_local_model, load_tokenizer
from ralm.lm.scoring import split_by_tokens
from ralm.protocols import Continuations, WritingModel
from ralm.records import FloatArray, ScoringSequence
from ralm.storage.store import Store

_Chunk: TypeAlias = tuple[int, Sequence[ScoringSequence]]
"""Sequences that are scored together, with their number."""

_PACKAGES: Final = ("torch", "transformers")
"""Packages whose versions decide the results of a model."""
_TOKENS: Final = {"cpu": 4096, "cuda": 1 << 18}
"""Tokens that a machine is handed at once: few enough that little is lost with it."""


@dataclass(frozen=True)
class ModelLoader:
    """A loader of a model by name on a machine. A folder or file is read under its absolute path."""

    name: str
    options: ModelOptions
    requirements: cluster.Requirements

    @classmethod
    def of(cls, name: str, options: ModelOptions) -> "ModelLoader":
        """Return the loader of the model that `load_local_model` loads here."""
        folder = [Path(name).absolute()] if is_local(name) else []
        return cls(name, options, cluster.Requirements.of(folder, _PACKAGES))

    @property
    def label(self) -> str:
        """The model's name in messages."""
        return f"the model {self.name}"

    def __call__(self) -> LocalLanguageModel:
        """Load the model; raises ClusterError if the machine lacks a requirement, and the errors of loading."""
        self.requirements.check()
        model = load_local_model(str(self.requirements.read[0]) if self.requirements.read else self.name, self.options)
        model.name = self.name
        return model

    def facts(self, model: LocalLanguageModel) -> dict[str, Any]:
        """Return facts that a process without a copy of the model needs."""
        return {
            **model.config,
            "max_length": model.max_length,
            "vocabulary": model.vocabulary,
            "merges_prefixes": model.merges_prefixes,
            "end_tokens": model.end_tokens,
        }


class ClusterModel:
    """A local model whose copies are on the machines of a cluster, a `LanguageModel` with the same `config`.

    Log-probabilities are those of one machine but for rounding: which texts are read together, and which take what they
    begin with from another one, differs. Raises ClusterError if machines have other versions or another model.
    """

    tier: Final = "all"

    def __init__(self, machines: workers.WorkerPool, loader: ModelLoader) -> None:
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
        """The `config` of the same model on one machine."""
        return dict(self._facts)

    @cached_property
    def tokenizer(self) -> ModelTokenizer:
        """The tokenizer of the model, loaded here."""
        tokenizer = load_tokenizer(self.name, self.loader.options)
        if tokenizer.fingerprint != self._facts["tokenizer"]:
            raise ClusterError(
                f"{self.loader.label} has another tokenizer on this machine than on those of the cluster."
            )
        return tokenizer

    def score(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        """Yield the log-probability (float32) of each target of each sequence, in order; ClusterError if that fails."""
        tokens = _TOKENS["cuda" if self._facts["device"].startswith("cuda") else "cpu"]
        chunks = enumerate(split_by_tokens(passes, tokens))
        early: dict[int, Sequence[FloatArray]] = {}
        due = 0
        with closing(self.machines.run(self.loader, _score, chunks, describe=self._describe)) as done:
            for (number, _), log_probs in done:
                early[number] = log_probs
                while due in early:
                    yield from early.pop(due)
                    due += 1

    def answer_remotely(
        self,
        inputs: Sequence[QuestionInput],
        options: AnswerOptions,
        store: Store | None,
        prompt: QuestionPrompt | None,
    ) -> Iterator[AnsweredInput]:
        """Yield the results of `answer_all`: the machines fill the store, and it then runs here and finds all there."""
        kept, replayed = store or Store(), cast("Any", _StoredModel(self))

        def stored(group: Sequence[int]) -> list[AnsweredInput] | None:
            """Return the answers to questions, None if one is not stored."""
            try:
                return [*answer_all([inputs[number] for number in group], replayed, options, kept, prompt)]
            except _NotStoredError:
                return None

        groups = [*groups_of(inputs, self, options.new_tokens)]
        new = ([inputs[number] for number in group] for group in groups if stored(group) is None)
        tasks = [_Questions(options, prompt, group) for group in new]
        with closing(self.machines.run(self.loader, _answer_questions, tasks, describe=_describe_questions)) as done:
            for group in groups:
                while (answered := stored(group)) is None:
                    _, entries = next(done)
                    kept.put(entries)
                for number, answer in zip(group, answered, strict=True):
                    yield number, *answer[1:]

    def continuations(self) -> Continuations:
        """Raise UsageError: a cluster does not continue texts."""
        raise UsageError(f"{self.name} only scores texts on a cluster; it continues none.")

    def _describe(self, chunk: _Chunk) -> str:
        return f"scoring texts of up to {len(chunk[1][0].tokens_N):,} tokens with {self.name}"


def _score(model: LocalLanguageModel, chunk: _Chunk) -> list[FloatArray]:
    return list(model.score(chunk[1]))


class _Questions(NamedTuple):
    """A task of answering: questions, and how they are answered."""

    options: AnswerOptions
    prompt: QuestionPrompt | None
    inputs: Sequence[QuestionInput]


class _NotStoredError(RalmError):
    """An answer is not stored, so the model would have to read."""


class _StoredModel:
    """A model whose scores and answers are stored; raises _NotStoredError where it would have to read."""

    answer_remotely = None  # all is here

    def __init__(self, model: WritingModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def score(self, _: Sequence[ScoringSequence]) -> NoReturn:
        raise _NotStoredError

    def continuations(self) -> Continuations:
        raise _NotStoredError


def _answer_questions(model: WritingModel, task: _Questions) -> Sequence[tuple[bytes, bytes]]:
    """Answer questions; return the entries of the store of scores and answers."""
    store = Store()
    for _ in answer_all(task.inputs, model, task.options, store, task.prompt):
        pass
    return store.items()


def _describe_questions(task: _Questions) -> str:
    return f"answering questions from {task.inputs[0].question.id} on"

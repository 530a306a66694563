"""A language model whose copies on the machines of a cluster share the scoring."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

from ralm.answering.answers import Answering, KeptAnswers
from ralm.answering.sources import AskedQuestion
from ralm.distributed.answering import Answered, answer_on
from ralm.distributed.cluster import Here
from ralm.distributed.machines import Machines
from ralm.distributed.work import TRIES
from ralm.errors import ClusterError, UsageError
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.local.tokenization import ModelTokenizer
from ralm.lm.named import TINY, load_local_model, load_tokenizer
from ralm.lm.options import ModelOptions
from ralm.lm.scoring import chunks_of
from ralm.protocols import Continuations
from ralm.records import FloatArray, ScoringSequence

PACKAGES: Final = ("torch", "transformers")
"""Packages whose versions decide what a model computes."""
_TOKENS: Final = {"cpu": 4096, "cuda": 1 << 18}
"""Tokens of the passes that a machine is handed at once: few enough that little is lost with it."""

_Chunk: TypeAlias = Sequence[tuple[int, ScoringSequence]]
"""Passes with their numbers."""


@dataclass(frozen=True)
class ModelMaker:
    """Loads a model by name on any machine that has what is `here`. A folder is read under its absolute path."""

    name: str
    options: ModelOptions
    here: Here

    @classmethod
    def of(cls, name: str, options: ModelOptions) -> "ModelMaker":
        """What loads the model on other machines as it is loaded here."""
        folder = [Path(name).absolute()] if name != TINY and Path(name).is_dir() else []
        return cls(name, options, Here.reading(folder, PACKAGES))

    @property
    def said(self) -> str:
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

    def __init__(self, machines: Machines, maker: ModelMaker) -> None:
        self.name = maker.name
        self.machines = machines
        self.maker = maker
        self._facts: dict[str, Any] = dict(machines.facts(maker))
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
            raise ClusterError(f"{self.maker.said} has another tokenizer on this machine than on those of the cluster.")
        return tokenizer

    def score(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        """For each pass, in order, the natural log-probability (float32) of each of its targets.

        Raises ClusterError if a pass ends the process that reads it again and again, or the cluster fails.
        """
        tokens = _TOKENS["cuda" if self._facts["device"].startswith("cuda") else "cpu"]
        chunks = list(_chunks(passes, tokens))
        early: dict[int, FloatArray] = {}
        due = 0
        done = self.machines.run(self.maker, _score, chunks, name=self._said, bad=self._bad, halves=_halves)
        with closing(done):
            for chunk, found in done:
                early |= {number: log_probs for (number, _), log_probs in zip(chunk, found, strict=True)}
                while due in early:
                    yield early.pop(due)
                    due += 1

    def answer_elsewhere(
        self, way: Answering[Answered], asked: Sequence[AskedQuestion], kept: KeptAnswers
    ) -> Iterator[Answered]:
        """What `way` gives with this model; raises what `answer_on` raises."""
        return answer_on(self.machines, self.maker, self, way, asked, kept)

    def continuations(self) -> Continuations:
        """Raises UsageError: texts are not continued token by token between machines."""
        raise UsageError(f"{self.name} only scores texts on a cluster; it continues none.")

    def _said(self, chunk: _Chunk) -> str:
        return f"scoring {len(chunk)} texts of up to {len(chunk[0][1].tokens_N):,} tokens with {self.name}"

    def _bad(self, chunk: _Chunk) -> NoReturn:
        length = len(chunk[0][1].tokens_N)
        raise ClusterError(
            f"a text of {length:,} tokens ends the process in which {self.name} reads it, each of {TRIES} times; the "
            "machines may have too little memory."
        )


def _score(model: LocalLanguageModel, chunk: _Chunk) -> list[FloatArray]:
    return list(model.score([one for _, one in chunk]))


def _halves(chunk: _Chunk) -> tuple[_Chunk, _Chunk] | None:
    middle = len(chunk) // 2
    return (chunk[:middle], chunk[middle:]) if middle else None


def _chunks(passes: Sequence[ScoringSequence], tokens: int) -> Iterator[_Chunk]:
    """Passes in order with their numbers, about so many tokens at a time."""
    numbered = enumerate(passes)
    return ([*islice(numbered, len(some))] for some in chunks_of(passes, tokens))

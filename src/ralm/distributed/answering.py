"""Questions answered on the machines of a cluster, and kept here: so the plain code finds every answer known.

A machine answers the questions that are answered together on one machine, too. What it found goes to where this process
keeps scores and answers; from there the answers are made, as after a run that was killed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar, cast

from ralm.answering.answers import Answering, KeptAnswers, groups_of
from ralm.answering.sources import AskedQuestion
from ralm.distributed.machines import Machines, Maker
from ralm.distributed.work import TRIES
from ralm.errors import ClusterError, RalmError
from ralm.lm.journal import MemoryJournal
from ralm.protocols import Continuations, WritingModel
from ralm.records import FloatArray, ScoringSequence

Answered = TypeVar("Answered", bound=tuple[Any, ...])
_Entries: TypeAlias = Sequence[tuple[bytes, FloatArray]]


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
    """What a machine is told: a way of answering, and questions with their numbers."""

    way: Answering[Any]
    asked: Sequence[tuple[int, AskedQuestion]]


def answer_on(
    machines: Machines,
    maker: Maker[WritingModel],
    model: WritingModel,
    way: Answering[Answered],
    asked: Sequence[AskedQuestion],
    kept: KeptAnswers,
) -> Iterator[Answered]:
    """What `way(asked, model, kept)` gives, with the model that the maker loads on each machine; `model` describes it
    here.

    Raises ClusterError if a question ends the process that answers it again and again, or the cluster fails.
    """
    scores, answers = (MemoryJournal() if one is None else one for one in (kept.scores, kept.answers))
    only: Any = _OnlyKept(model)

    def known(group: Sequence[int]) -> list[Answered]:
        return [*way([asked[number] for number in group], only, KeptAnswers(scores, answers))]

    groups = [*groups_of(asked)]
    new = [[number for number in group if not _is_known(known, [number])] for group in groups]
    work = [_Work(way, [(number, asked[number]) for number in group]) for group in new if group]
    left = {number for one in work for number, _ in one.asked}
    with closing(machines.run(maker, _answer, work, name=_said, bad=_bad, halves=_halves)) as done:
        for group in groups:
            while not left.isdisjoint(group):
                task, found = next(done)
                scores.add(found[0])
                answers.add(found[1])
                left -= {number for number, _ in task.asked}
            for number, one in zip(group, known(group), strict=True):
                yield cast("Answered", (number, *one[1:]))


def _answer(model: WritingModel, work: _Work) -> tuple[_Entries, _Entries]:
    """Answer questions; returns the scores and the answers that a later process can go on with."""
    scores, answers = MemoryJournal(), MemoryJournal()
    for _ in work.way([one for _, one in work.asked], model, KeptAnswers(scores, answers)):
        pass
    return scores.items(), answers.items()


def _is_known(known: Callable[[Sequence[int]], object], group: Sequence[int]) -> bool:
    try:
        known(group)
    except _NotKeptError:
        return False
    return True


def _said(work: _Work) -> str:
    return f"answering {len(work.asked)} questions from {work.asked[0][1].question.id} on"


def _bad(work: _Work) -> NoReturn:
    raise ClusterError(
        f"question {work.asked[0][1].question.id} ends the process that answers it, each of {TRIES} times; the "
        "machines may have too little memory."
    )


def _halves(work: _Work) -> tuple[_Work, _Work] | None:
    middle = len(work.asked) // 2
    return (_Work(work.way, work.asked[:middle]), _Work(work.way, work.asked[middle:])) if middle else None

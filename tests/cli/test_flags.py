"""Flags are made from option records."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from ralm.cli.flags import Flags, command
from ralm.errors import UsageError
from ralm.options import Needs, Option, check_options


@dataclass(frozen=True, kw_only=True)
class Inner:
    many: Annotated[int, Option("How many.", flag="inner-many")] = 3
    seed: Annotated[int, Option("A seed.", minimum=0)] = 0
    documents: Annotated[int, Option("Documents.")] = 10
    hidden: Annotated[int, Option("Not on the command line.", flag="")] = 1

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: Annotated[str, Option("Which.")]
    inner: Annotated[Inner, Option("Within.", needs=Needs('`name="x"`', lambda outer: outer.name == "x"))] = field(
        default_factory=Inner
    )
    documents: Annotated[int, Option("Documents.")] = 2
    folder: Annotated[Path | None, Option("Where.", default_text="here")] = None
    stop: Annotated[tuple[str, ...], Option("Stop; may be given again.")] = ()
    titles: Annotated[bool, Option("With titles.")] = True
    skip: Annotated[bool, Option("Skip `stop`.")] = False


def called(function: Callable[..., None], *arguments: str) -> None:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(command(function))
    app([*arguments], standalone_mode=False)


def outer_of(*arguments: str) -> Outer:
    made: list[Outer] = []

    def take(outer: Outer) -> None:
        made.append(outer)

    called(take, *arguments)
    return made[0]


def test_a_record_within_a_record_is_flat_flags() -> None:
    outer = outer_of("--name", "x", "--inner-many", "7", "--stop", "a", "--stop", "b", "--no-titles", "--folder", "f")
    assert outer == Outer(name="x", inner=Inner(many=7), stop=("a", "b"), titles=False, folder=Path("f"))
    assert outer_of("--name", "x") == Outer(name="x")


def test_a_flag_of_several_records_sets_all_of_them_and_each_keeps_its_own_default() -> None:
    outer = outer_of("--name", "x")
    assert (outer.documents, outer.inner.documents) == (2, 10)
    outer = outer_of("--name", "x", "--documents", "5")
    assert (outer.documents, outer.inner.documents) == (5, 5)


def test_a_bound_is_told_by_the_flag() -> None:
    with pytest.raises(UsageError, match="^--inner-many must be at least 1, not 0"):
        outer_of("--name", "x", "--inner-many", "0")


def test_what_has_no_flag_is_none() -> None:
    with pytest.raises(Exception, match="No such option"):
        outer_of("--name", "x", "--hidden", "2")


def test_a_command_may_go_without_a_flag_and_keep_its_own_default() -> None:
    made: list[Any] = []

    def take(inner: Annotated[Inner, Flags(without=("seed",))] = Inner(seed=4)) -> None:
        made.append(inner)

    called(take, "--inner-many", "2")
    assert made == [Inner(many=2, seed=4)]
    with pytest.raises(Exception, match="No such option"):
        called(take, "--seed", "2")


def test_a_record_that_may_be_none_is_none_where_what_it_needs_is_not_given() -> None:
    made: list[Outer | None] = []

    def take(outer: Outer | None = None) -> None:
        made.append(outer)

    called(take)
    called(take, "--name", "x")
    assert made == [None, Outer(name="x")]


def test_a_record_that_is_made_later_takes_other_values() -> None:
    made: list[Outer] = []

    def take(make: Callable[..., Outer]) -> None:
        made.extend(make(inner_many=many) for many in (1, 2))

    called(take, "--name", "x", "--inner-many", "0")
    assert [outer.inner.many for outer in made] == [1, 2]

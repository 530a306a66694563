"""What commands take: flags made from records, prompts and queries, options without effect, files of settings."""

import json
import os
import re
import subprocess
import sys
from ast import literal_eval
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from ralm.cli import program
from ralm.cli.flags import command
from ralm.cli.options import read_input
from ralm.errors import RalmError, UsageError
from ralm.options import Option, check_options
from tests.cli.program import Answer, failed, ralm


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
    inner: Annotated[Inner, Option("Within.")] = field(default_factory=Inner)
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

    def take(inner: Annotated[Inner, Option("Within.", without=("seed",))] = Inner(seed=4)) -> None:
        made.append(inner)

    called(take, "--inner-many", "2")
    assert made == [Inner(many=2, seed=4)]
    with pytest.raises(Exception, match="No such option"):
        called(take, "--seed", "2")


def test_a_record_that_is_made_later_takes_other_values() -> None:
    made: list[Outer] = []

    def take(make: Callable[..., Outer]) -> None:
        made.extend(make(inner_many=many) for many in (1, 2))

    called(take, "--name", "x", "--inner-many", "0")
    assert [outer.inner.many for outer in made] == [1, 2]


def refused(answer: Answer, message: str) -> None:
    assert answer.status in (1, 2)
    assert answer.out == ""
    assert message in answer.err
    assert len(answer.err.splitlines()) == 1


def test_json_lines_may_hold_several_lines(tmp_path: Path) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text("\n".join(map(json.dumps, ["one\ntwo", {"prompt": "a\u2028b", "id": 3, "query": "q"}])) + "\n\n")
    assert read_input(None, file, "prompt") == ["one\ntwo", "a\u2028b"]
    file.write_text('{"query": "who?"}\n')
    assert read_input(None, file, "query") == ["who?"]


def test_a_line_of_a_file_is_one_whatever_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "asked.txt"
    file.write_bytes("one\x0c\x1c\x85\u2028still one\r\ntwo\n".encode())
    assert read_input(None, file, "query") == ["one\x0c\x1c\x85\u2028still one", "two"]


def test_a_line_of_standard_input_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for end in (b"", b"\n", b"\r\n"):
        monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"who?" + end)))
        assert read_input("-", None, "question") == ["who?"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON"),
        ("3", "line 2 is neither a string nor an object with the string"),
        ('{"text": "x"}', "line 2 is neither a string nor an object with the string"),
        ('"\\ud800"', "line 2 holds a lone surrogate"),
    ],
)
def test_lines_that_are_no_prompt(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text(f'"one"\n{line}\n')
    with pytest.raises(RalmError, match=message):
        read_input(None, file, "prompt")


def test_what_is_not_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    generate = ["generate", "--lm", "ralm-tiny"]
    refused(ralm(*generate, name), "the prompt is not UTF-8")
    refused(ralm(*generate, "-", stdin=b"caf\xe9"), "standard input is not UTF-8")
    refused(ralm("search", tmp_path, name), "the query is not UTF-8")
    refused(ralm("search", tmp_path, "--queries", tmp_path / name), "does not exist")
    refused(ralm("eval", tmp_path / "x", "--lm", name), "does not exist")


def test_paths_that_no_system_takes(tmp_path: Path) -> None:
    refused(ralm("search", "a" * 5000, "sea"), "File name too long")
    refused(ralm("search", "nul\0", "sea"), "an argument holds a NUL character")


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for one, member in group.commands.items():
        yield from commands(member, f"{one} ") if hasattr(member, "commands") else [(name + one, member)]


@pytest.mark.parametrize("name", [name for name, _ in commands(program())])
def test_help_has_an_example_and_every_option_once(name: str) -> None:
    _, _, shown = ralm(*name.split(), "--help").out.partition("Example: `ralm ")
    listed = re.findall(r"^  (?:-\w, )?(--?[\w-]+)", shown, re.MULTILINE)
    options = [
        max(one.opts, key=len) for one in dict(commands(program()))[name].params if one.param_type_name == "option"
    ]
    assert sorted(listed) == sorted([*options, "--help"])


def test_a_command_loads_no_other() -> None:
    """As users wait for it at each start."""
    loaded = "import sys; sys.argv = ['ralm', '--quiet', 'search', '--help']; from ralm.cli import main\ntry: main()\n"
    loaded += "except SystemExit: print([one for one in sys.modules if one.startswith('ralm.cli.')])"
    out = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True, timeout=120).stdout
    modules = out.splitlines()[-1]
    assert "ralm.cli.search" in modules
    assert not {"ralm.cli.train", "ralm.cli.serve", "ralm.cli.qa", "ralm.cli.index"} & set(literal_eval(modules))


READING = "eval TEXT --lm ralm-tiny "
INDEXED = READING + "--index i "
EFFECT = "has no effect without"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (INDEXED + "--mixer uniform", f"--mixer {EFFECT} --reader ensemble"),
        (INDEXED + "--reader concatenation --mixer uniform", f"--mixer {EFFECT} --reader ensemble"),
        (INDEXED + "--block 8", f"--block {EFFECT} --windows blocked"),
        (READING + "--retriever random", "--retriever, --where and the like choose passages of an index: give --index"),
        (READING + "--retrieved r --where year>1", "choose passages of an index: give --index"),
        (READING + "--baseline", f"--baseline {EFFECT} --index or --retrieved"),
        ("index DIR --out DIR/out --encoder e", "--retriever dense or both and --encoder go together"),
    ],
)
def test_an_option_that_would_change_nothing_is_rejected(tmp_path: Path, command: str, said: str) -> None:
    (tmp_path / "text.txt").write_text("one two three")
    answer = ralm(*command.replace("TEXT", f"{tmp_path}/text.txt").replace("DIR", str(tmp_path)).split())
    failed(answer, 2, said)
    assert len(answer.err.splitlines()) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["text.txt"]

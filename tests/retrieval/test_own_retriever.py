"""`--retriever module:Class`: a class of the user's own in commands and in the server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import ralm as library
from ralm.errors import UsageError
from ralm.serving.options import ServeOptions, Settings, with_choices
from tests.cli.program import MODEL_LENGTH, STORIES, TEXT, done, failed, printed, ralm
from tests.fakes import passages_of

CODE = '''
from ralm import Hits

class Longest:
    """The longest passages, whatever the query."""

    config = {"retriever": "longest"}

    def __init__(self, passages):
        self.order = sorted(range(len(passages)), key=lambda number: -len(passages[number].text))

    def retrieve(self, queries, k):
        best = [(number, 1.0 / (1 + place)) for place, number in enumerate(self.order[:k])]
        return Hits.from_pairs([best] * len(queries))

class Wrong:
    config = {}
    def __init__(self, index):
        raise KeyError("no weights")

class Silent:
    def __init__(self, index): ...
    def retrieve(self, queries, k): ...

class Odd(Longest):
    def retrieve(self, queries, k):
        return [[0]] * len(queries)

class_of_nothing = 3
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with the module, an index and a text."""
    monkeypatch.chdir(tmp_path)
    Path("my_retrievers.py").write_text(CODE)
    Path("needs_more.py").write_text("import a_module_that_is_not_there\n")
    Path("broken.py").write_text("class Longest(:\n")
    Path("text.txt").write_text(TEXT)
    library.build_index(passages_of(*(text for _, _, text in STORIES)), tmp_path / "index")
    yield tmp_path
    for name in ("my_retrievers", "needs_more", "broken"):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)


OWN = ["--retriever", "my_retrievers:Longest"]


def test_a_class_finds_passages_in_every_command(folder: Path) -> None:
    longest = max((text for _, _, text in STORIES), key=len)
    assert printed("search", "index", "green", "-k", "1", *OWN)["hits"][0]["text"] == longest
    Path("topics.tsv").write_text("what is green\t['green']\n")
    judged = printed("search", "index", "--topics", "topics.tsv", "--measures", "RR", "--against", "bm25", *OWN)
    assert judged["config"]["runs"][0]["class"] == "my_retrievers:Longest"
    read = ["--lm", "ralm-tiny", "--index", "index", *OWN]
    evaluated = printed("eval", "text.txt", *read, *MODEL_LENGTH, "--limit-tokens", "40", "--out", "run")
    assert evaluated["config"]["passages"]["class"] == "my_retrievers:Longest"
    answer = printed("ask", "What is green?", *read, "--new-tokens", "4")
    assert longest in json.dumps(answer)


def test_a_run_does_not_resume_with_other_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = ["--lm", "ralm-tiny", "--index", "index", *OWN, *MODEL_LENGTH, "--limit-tokens", "40"]
    before = printed("eval", "text.txt", *read)["config"]["passages"]
    monkeypatch.delitem(__import__("sys").modules, "my_retrievers")
    Path("my_retrievers.py").write_text(CODE.replace("key=lambda number: -len", "key=lambda number: len"))
    after = printed("eval", "text.txt", *read)["config"]["passages"]
    assert {name for name in before if before[name] != after[name]} == {"code"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:Longest", "there is no module nowhere, here or among the installed ones."),
        ("my_retrievers:Missing", "my_retrievers has no class Missing."),
        ("my_retrievers:class_of_nothing", "my_retrievers has no class class_of_nothing."),
        ("my_retrievers:Wrong", "Wrong cannot be made: KeyError: 'no weights'."),
        ("my_retrievers:Silent", "Silent has no `config`, which such a part needs."),
        ("needs_more:Longest", "needs_more needs the module a_module_that_is_not_there, which is not installed."),
        ("broken:Longest", "broken cannot be imported: SyntaxError: invalid syntax"),
        ("my_retrievers:Odd", "the retriever Odd "),
        (
            "longest",
            "--retriever longest is not known: write one of bm25, dense, hybrid, random, or a class of your own",
        ),
    ],
)
def test_what_is_no_retriever(folder: Path, name: str, message: str) -> None:
    answer = ralm("search", "index", "green", "--retriever", name)
    failed(answer, 2 if name == "longest" else answer.status, message)
    assert answer.status in (1, 2)


def test_a_class_that_cannot_forbid(folder: Path) -> None:
    Path("titles.txt").write_text("d0\n")
    answer = ralm("search", "index", "green", *OWN, "--forbidden-titles", "titles.txt")
    failed(answer, answer.status, "my_retrievers:Longest cannot leave out titles")


def test_a_request_never_names_a_class() -> None:
    with pytest.raises(UsageError, match="is a class, which only the operator can choose"):
        with_choices(Settings(index="one"), {"retriever": "os:system"}, ServeOptions(), ("one",))


def test_other_commands_take_it(folder: Path) -> None:
    done("generate", "The sea", "--lm", "ralm-tiny", "--index", "index", *OWN, *MODEL_LENGTH, "--new-tokens", "2")

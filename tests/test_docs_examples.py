"""The examples of the documentation run.

All examples of a page run in one folder, from top to bottom, and its Python blocks share their variables. The folder
holds what examples read: documents (`my-documents`, `new-documents`), ids of documents (`gone.txt`), a text
(`my-text.txt`), prompts (`prompts.txt`), questions (`my-questions.jsonl`), questions with choices
(`my-choices.jsonl`), topics with judgements (`my-topics.tsv`, `my-qrels.txt`), forbidden titles (`titles.txt`), and an
index of both kinds (`my-index`). Tiny models stand there under the names that the pages use (`gpt2`,
`facebook/contriever`, `my-tuned-contriever`). A Python block that begins with `# NAME.py` is that module too. A comment
before a block, `<!-- not run: REASON -->`, excludes it; the commands and options of such a block must still exist.
"""

import ast
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest

from ralm.lm.registry import load_local_model
from ralm.serving.options import ServeOptions
from tests.api.backings import OfModel
from tests.api.dialects import VLLM
from tests.api.scripted_server import ScriptedServer
from tests.chat_models import save_chat_model
from tests.cli.program import ralm
from tests.serving.served import local, serving
from tests.tiny_encoders import save_tiny_bert
from tests.tiny_models import save_tiny_model

ROOT = Path(__file__).parents[1]
GENERATED = ("command-line.md", "python-api.md")
SERVER = "http://localhost:8000"
"""Where the examples have a model behind an API, called gpt2."""
OWN_SERVER = "http://127.0.0.1:8000"
"""Where the examples have `ralm serve` with the same model; commands that start it are not run."""
MOST_EXCLUDED = 10
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+) -->\n)?^```(?P<language>python|sh|bash)\n(?P<code>.*?)^```", re.M | re.S
)
DOCUMENTS = {
    "curie.txt": "Radium was discovered by Marie Curie and Pierre Curie in 1898. Radium is found in uranium ore.",
    "open.md": "# Files\n\nThe function open opens a file for writing when its mode is w.",
    "sea.txt": "The sea is deep and blue. The whales sing in the deep sea by night.",
    "garden.txt": "In spring the gardener digs the beds and sows peas, beans and carrots. In summer she waters them "
    "early in the morning, before the sun dries the soil. In autumn she picks apples and pears, and stores them in "
    "the cellar. In winter the garden rests under the snow, and she reads about roses.",
    "sheep.txt": "The dog keeps the sheep together on the green hill. The shepherd sleeps.",
}
TEXT = (
    "= Sheep =\nThe dog keeps the sheep together on the green hill.\n"
    "= Radium =\nRadium was discovered by Marie Curie.\n"
)


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    code: str
    reason: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(page.name, found["language"], found["code"], found["reason"]) for found in BLOCK.finditer(text)]


def commands(code: str) -> Iterator[list[str]]:
    """The arguments of every `ralm` command of a shell block."""
    for line in code.replace("\\\n", " ").splitlines():
        for command in line.split("&&"):
            words = shlex.split(re.sub(r"(^|\s)#.*", "", command))  # a # inside of a word begins no comment
            if words[:1] == ["ralm"]:
                yield words[1:]


PAGES = {page.name: blocks(page) for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
WITH_EXAMPLES = [
    name for name, found in PAGES.items() if name not in GENERATED and any(not one.reason for one in found)
]


@pytest.fixture(scope="module")
def what_examples_read(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    (folder / "my-documents").mkdir()
    for name, text in DOCUMENTS.items():
        (folder / "my-documents" / name).write_text(text)
    (folder / "new-documents").mkdir()
    (folder / "new-documents" / "moon.txt").write_text("The moon is the only natural satellite of the earth.")
    (folder / "gone.txt").write_text("open.md\n")
    (folder / "my-text.txt").write_text(TEXT)
    (folder / "titles.txt").write_text("sheep\n")
    questions = [
        '{"question": "who discovered radium", "answer": ["Marie Curie"]}',
        '{"question": "who sleeps", "answer": ["the shepherd"]}',
    ]
    (folder / "my-questions.jsonl").write_text("\n".join(questions) + "\n")
    (folder / "my-topics.tsv").write_text("1\twho discovered radium\n2\twhales in the sea\n")
    (folder / "my-qrels.txt").write_text("1 0 curie.txt 1\n2 0 sea.txt 1\n")
    choices = [
        '{"question": "Who discovered radium?", "choices": ["Marie Curie", "Ada Lovelace"], "answer": "A"}',
        '{"question": "Who sleeps?", "choices": ["the dog", "the shepherd", "the sheep"], "answer": 1}',
    ]
    (folder / "my-choices.jsonl").write_text("\n".join(choices) + "\n")
    (folder / "prompts.txt").write_text("Radium was discovered by\nThe whales sing\n")
    save_tiny_model("bloom", folder / "gpt2")
    save_chat_model(folder / "my-chat-model")
    save_tiny_bert(folder / "facebook" / "contriever")
    save_tiny_bert(folder / "my-tuned-contriever", seed=1)
    arguments = ("--retriever", "both", "--encoder", folder / "facebook" / "contriever")
    assert ralm("index", folder / "my-documents", "--out", folder / "my-index", *arguments).status == 0
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("no_tasks_of_the_harness")
@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_the_examples_of_a_page_run(
    page: str, what_examples_read: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(what_examples_read, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("RALM_CACHE", str(tmp_path / "cache"))
    variables: dict[str, object] = {"__name__": "__main__"}
    with served(PAGES[page]) as run_blocks:
        for block in run_blocks:
            if block.language == "python":
                if named := re.match(r"# (\w+\.py)\n", block.code):
                    Path(named[1]).write_text(block.code)
                exec(compile(block.code, page, "exec"), variables)
            else:
                run_shell(block.code, page)


@pytest.mark.slow
def test_the_notebook_runs_and_shows_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    variables: dict[str, object] = {}
    shown = []
    for cell in json.loads((ROOT / "docs" / "tutorial.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            *statements, last = ast.parse("".join(cell["source"])).body
            exec(compile(ast.Module(statements, []), "cell", "exec"), variables)
            if isinstance(last, ast.Expr):
                result = eval(compile(ast.Expression(last.value), "cell", "eval"), variables)
                shown.append(getattr(result, "_repr_html_", lambda: None)())
            else:
                exec(compile(ast.Module([last], []), "cell", "exec"), variables)
    answer, page = filter(None, shown)
    assert "<b>curie</b>" in answer
    assert page.startswith("<iframe srcdoc=")
    assert "Marie Curie and Pierre" in page


def run_shell(code: str, page: str) -> None:
    """Run the `ralm` and `curl` commands of a shell block; `ralm serve` would not end, so its options are looked up."""
    for arguments in commands(code):
        if arguments[0] == "serve":
            assert unknown_options(arguments) == [], page
            continue
        make_room(arguments)
        answer = ralm(*arguments)
        assert answer.status == 0, f"{page}: ralm {shlex.join(arguments)}\n{answer.err}"
    for line in code.replace("\\\n", " ").splitlines():
        if line.startswith("curl "):
            out = subprocess.run(shlex.split(line), capture_output=True, text=True, check=True, timeout=60).stdout
            assert '"error"' not in out, f"{page}: {line}\n{out}"


@contextmanager
def served(found: list[Block]) -> Iterator[list[Block]]:
    """The blocks of a page that run; those that name a server ask one that has started here."""
    found = [block for block in found if not block.reason]
    if any(OWN_SERVER in block.code for block in found):
        options = ServeOptions(prompt="in-context-ralm")
        service = local(load_local_model("gpt2"), options, folders={"my-index": Path("my-index")}, max_length=512)
        with serving(service) as address:
            yield [replace(block, code=block.code.replace(OWN_SERVER, address)) for block in found]
    elif any(SERVER in block.code for block in found):
        with ScriptedServer(OfModel(load_local_model("gpt2")), VLLM(), model="gpt2") as server:
            yield [replace(block, code=block.code.replace(SERVER, server.root)) for block in found]
    else:
        yield found


def make_room(arguments: list[str]) -> None:
    """Remove what stands where a command is to write."""
    for option, value in pairwise(arguments):
        if option in ("--out", "-o"):
            shutil.rmtree(value, ignore_errors=True)


def test_excluded_commands_and_their_options_exist() -> None:
    for block in (block for found in PAGES.values() for block in found if block.reason and block.language != "python"):
        for arguments in commands(block.code):
            assert unknown_options(arguments) == [], block.page


def unknown_options(arguments: list[str]) -> list[str]:
    """The options of a command that it does not have."""
    command, *rest = arguments
    group = rest[:1] if command == "train" else []
    known = ralm(command, *group, "--help").out
    assert known, f"there is no `ralm {command}`"
    return [word for word in rest if word.startswith("--") and not re.search(rf"{word}\b", known)]


def test_few_examples_are_excluded() -> None:
    excluded = [(block.page, block.reason) for found in PAGES.values() for block in found if block.reason]
    assert len(excluded) <= MOST_EXCLUDED, excluded


def test_every_comment_that_excludes_stands_in_front_of_a_block() -> None:
    for page, found in PAGES.items():
        text = (ROOT / page if page == "README.md" else ROOT / "docs" / page).read_text(encoding="utf-8")
        assert text.count("<!-- not run") == sum(block.reason is not None for block in found), page

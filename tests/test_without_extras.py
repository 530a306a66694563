"""What works in an installation without any extra, and which extra the rest names.

One Python process runs everything. In it, packages that only an extra brings cannot be imported.
"""

import importlib
import json
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.cli.program import ralm
from tests.training.made_signals import save_signals

ROOT = Path(__file__).parents[1]
OF_EXTRAS = frozenset(
    "accelerate bitsandbytes datasets faiss fastapi gguf httpx2 huggingface_hub ir_measures lm_eval matplotlib mcp "
    "openai prometheus_client ray safetensors sentence_transformers starlette tiktoken tokenizers torch "
    "transformers uvicorn".split()
)
LIBRARY = ["the library"]
"""Stands for `use_the_library` among the commands."""

INDEX = ["index", "corpus.jsonl", "--out", "index"]
SEARCH = ["search", "index", "whales", "--json"]
CHECK = ["check", "index"]
RANDOM = ["search", "index", "whales", "--retriever", "random", "--json"]
WORKING = [INDEX, SEARCH, CHECK, RANDOM, ["--version"], ["eval", "--help"], LIBRARY]

LM = ["--lm", "ralm-tiny"]
MISSING = {
    "lm": [
        ["eval", "text.txt", *LM],
        ["eval", "text.txt", *LM, "--limit-tokens", "9", "--index", "index", "--out", "run"],
        ["eval", "text.txt", *LM, "--index", "index", "--over", "stride=2,4"],
        ["generate", "The whales", *LM],
        ["retrieve", "text.txt", *LM, "--index", "index", "--out", "retrieved.json"],
        ["index", "corpus.jsonl", "--out", "other", "--tokens", "9", *LM],
        ["demo"],
    ],
    "dense": [
        ["index", "corpus.jsonl", "--out", "other", "--retriever", "dense", "--encoder", "bert"],
        ["encode", "index", "--encoder", "bert"],
    ],
    "judge": [["search", "index", "--topics", "topics.tsv", "--qrels", "qrels.txt"]],
    "serve": [["serve", *LM]],
    "datasets": [["index", "hf:some/corpus", "--out", "other"]],
    "mcp": [["mcp", "--index", "index"]],
    "ray": [["eval", "text.txt", *LM, "--lm-args", "ray=auto"]],
}


class WithoutThem:
    """An import finder that stands for an installation without these packages."""

    @staticmethod
    def find_spec(name: str, *_: object) -> ModuleSpec | None:
        if name.partition(".")[0] in OF_EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def use_the_library() -> str:
    """All public names can be imported, an index can be searched, and a model is one sentence."""
    import ralm as library

    for name in dir(library):
        getattr(library, name)
    hits = library.open_index("index").bm25.retrieve(["whales"], 1)
    assert hits.of(0)
    with pytest.raises(
        library.RalmError, match=r"^language models need the package torch: pip install 'ralm\[lm\]'\.$"
    ):
        library.load_language_model("ralm-tiny")
    with pytest.raises(library.RalmError, match=r"^dense retrieval needs the package torch: pip install 'ralm\[dense"):
        library.load_encoder(library.EncoderOptions(encoder="bert"))
    with pytest.raises(library.RalmError, match=r"^cross-encoders need the package torch: pip install 'ralm\[dense"):
        library.load_cross_encoder("bert")
    with pytest.raises(library.RalmError, match=r"needs the package lm_eval: pip install 'ralm\[harness\]'\.$"):
        importlib.import_module("ralm.harness.model")
    fingerprint = library.open_index("index").fingerprint
    with (
        TemporaryDirectory() as folder,
        pytest.raises(library.RalmError, match=r"^training needs the package torch: pip install 'ralm\[train"),
    ):
        signals = save_signals(Path(folder) / "s", fingerprint, ["a"] * 10, [[0, 1]] * 10, [[-1.0, -2.0]] * 10)
        library.train_reranker(signals, "reranker", "bert", index="index")
    return "works"


def run_all() -> None:
    """Run the commands and print their answers."""
    sys.meta_path.insert(0, WithoutThem())
    for command in [*WORKING, *(command for commands in MISSING.values() for command in commands)]:
        if command is LIBRARY:
            row = [command, 0, use_the_library(), ""]
        else:
            answer = ralm(*command)
            row = [command, answer.status, answer.out, answer.err]
        sys.stdout.write(json.dumps(row) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("without")
    rows = [{"id": str(n), "text": text} for n, text in enumerate(["Whales sing in the sea.", "Sheep graze."] * 3)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "text.txt").write_text("The whales sing in the deep blue sea. " * 9)
    return folder


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[str, tuple[int, str, str]]:
    path = os.pathsep.join([str(ROOT), *sys.path])
    program = [sys.executable, "-c", "from tests.test_without_extras import run_all; run_all()"]
    done = subprocess.run(program, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {" ".join(command): (status, out, err) for command, status, out, err in rows}


@pytest.mark.parametrize("command", WORKING, ids=" ".join)
def test_what_needs_no_model_works(answers: dict[str, tuple[int, str, str]], command: list[str]) -> None:
    status, out, err = answers[" ".join(command)]
    assert status == 0, err
    if command == SEARCH:
        assert [hit["text"] for hit in json.loads(out)["hits"]] == ["Whales sing in the sea."] * 3


@pytest.mark.parametrize(
    ("extra", "command"),
    [(extra, command) for extra, commands in MISSING.items() for command in commands],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_needs_a_package_names_its_extra(
    answers: dict[str, tuple[int, str, str]], folder: Path, extra: str, command: list[str]
) -> None:
    status, _, err = answers[" ".join(command)]
    assert status == 1
    assert err.endswith(f": pip install 'ralm[{extra}]'.\n")
    assert err.startswith("ralm: ")
    assert err.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == ["corpus.jsonl", "index", "text.txt"]

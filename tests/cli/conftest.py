"""What tests of the command line share: an index of the stories, and the commands that read it."""

from pathlib import Path

import pytest

from tests.cli.program import MODEL_LENGTH, done, write_stories


@pytest.fixture(scope="package")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus and the text of stories, and an index made by the program itself."""
    folder = write_stories(tmp_path_factory.mktemp("work"))
    done("index", folder / "corpus.jsonl", "--out", folder / "index", "--words", 10)
    return folder


@pytest.fixture(scope="package")
def model(tiny_folders: dict[str, Path]) -> Path:
    return tiny_folders["llama"]


@pytest.fixture
def evaluate(work: Path, model: Path) -> list[object]:
    """A command that evaluates the text with passages."""
    return ["eval", work / "text.txt", "--lm", model, "--index", work / "index", *MODEL_LENGTH]


@pytest.fixture
def generate(work: Path, model: Path) -> list[object]:
    """A command that writes a few tokens with passages; it lacks the prompt."""
    return ["generate", "--lm", model, "--index", work / "index", "--document-tokens", 24, "--new-tokens", 9]

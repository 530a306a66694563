"""Models as people load them: quantised weights, attention, revisions, code of their own, chat templates."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ralm.errors import ModelError, UsageError
from ralm.lm.registry import ModelOptions, load_language_model, load_local_model, load_tokenizer
from ralm.records import FloatArray, Message, ScoringSequence
from tests.chat_models import TEMPLATE, save_chat_model
from tests.tiny_models import save_tiny_model

TOKENS = np.arange(1, 20)
SEQUENCE = ScoringSequence(TOKENS, np.arange(1, 19))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("llama", tmp_path_factory.mktemp("models") / "llama")


def scored(name: Path | str, **options: Any) -> tuple[FloatArray, dict[str, Any]]:
    model = load_language_model(str(name), ModelOptions(**{"dtype": "float32", **options}))
    return next(iter(model.score([SEQUENCE]))), dict(model.config)


@pytest.mark.parametrize(("bits", "apart"), [("8bit", 0.1), ("4bit", 0.5)])
def test_quantised_weights(bits: str, apart: float) -> None:
    pytest.importorskip("bitsandbytes")
    plain, config = scored("ralm-tiny")
    found, quantised = scored("ralm-tiny", quantised=bits)
    assert 0 < np.abs(found - plain).mean() < apart
    assert quantised["quantised"] == bits
    assert quantised["weights"] != config["weights"]


def test_quantised_weights_are_on_one_device() -> None:
    with pytest.raises(UsageError, match="run on one `device`"):
        ModelOptions(quantised="4bit", device="cuda:0,cuda:1")


def test_an_implementation_of_attention(folder: Path) -> None:
    plain, config = scored(folder)
    eager, chosen = scored(folder, attention="eager")
    np.testing.assert_allclose(eager, plain, atol=1e-4)
    assert {**config, "attention": "eager"} == chosen
    with pytest.raises(ModelError, match="FlashAttention2"):
        scored(folder, attention="flash_attention_2")
    model = load_local_model(str(folder), ModelOptions(dtype="bfloat16", attention="sdpa"))
    assert model.model.config._attn_implementation == "sdpa", "not the one of ralm"


def test_a_revision_is_one_of_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="`revision` names a version on the model hub, and .* is a folder"):
        scored(folder, revision="v1")
    asked: list[Any] = []

    def from_pretrained(name: str, **options: Any) -> None:
        asked.append((name, options["revision"], options["trust_remote_code"]))
        raise OSError("no network")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", from_pretrained)
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", from_pretrained)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", from_pretrained)
    with pytest.raises(ModelError, match="no network"):
        load_tokenizer("some/model", ModelOptions(revision="abc"))
    with pytest.raises(ModelError, match="no network"):
        load_tokenizer("some/model")
    monkeypatch.setattr("ralm.lm.local.tokenization.load_model_tokenizer", lambda *_: None)
    with pytest.raises(ModelError, match="no network"):
        load_language_model("some/model", ModelOptions(revision="abc", trust_remote_code=True))
    assert asked == [
        ("some/model", "abc", False),
        ("some/model", "main", False),
        ("some/model", "abc", True),
        ("some/model", "abc", True),
    ]
    assert ModelOptions(revision="abc").identity == {"revision": "abc"}


def test_code_of_a_model_runs_only_if_it_is_trusted(folder: Path, tmp_path: Path) -> None:
    own = save_tiny_model("llama", tmp_path / "own")
    config = json.loads((own / "config.json").read_text())
    config |= {
        "model_type": "of_its_own",
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own"},
    }
    (own / "config.json").write_text(json.dumps(config))
    marker = tmp_path / "ran"
    (own / "own.py").write_text(
        "from pathlib import Path\nfrom transformers import LlamaConfig, LlamaForCausalLM\n"
        f"Path({str(marker)!r}).touch()\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'of_its_own'\n"
        "class Own(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    with pytest.raises(ModelError, match="comes with Python code of its own.*`trust_remote_code=True`"):
        scored(own)
    assert not marker.exists()
    found, _ = scored(own, trust_remote_code=True)
    assert marker.exists()
    np.testing.assert_allclose(found, scored(folder)[0], atol=1e-4)


THINKING = TEMPLATE + "{% if add_generation_prompt and enable_thinking is false %}<no thoughts>{% endif %}"


def test_arguments_of_the_chat_template(tmp_path: Path) -> None:
    folder = str(save_chat_model(tmp_path / "chat", THINKING))
    options = ModelOptions(template_arguments=("enable_thinking=false",))
    plain, given = load_local_model(folder), load_local_model(folder, options)
    said = [Message("user", "Who?")]
    texts = []
    for model in (plain, given):
        encoded = model.tokenizer.encode_chat(said)
        assert encoded is not None
        texts.append(model.tokenizer.decode(encoded[0]))
    assert texts[1] == texts[0] + "<no thoughts>"
    assert given.tokenizer.chat([{"role": "user", "content": "Who?"}]).endswith("<no thoughts>")
    assert given.config["template_arguments"] == {"enable_thinking": False}
    assert "template_arguments" not in plain.config
    for wrong in ("tokenize=true", "a b=1", "=1"):
        with pytest.raises(UsageError, match="`template_arguments` are NAME=VALUE"):
            ModelOptions(template_arguments=(wrong,))


def test_a_mistyped_model_of_ralm_is_not_looked_for_on_the_hub() -> None:
    with pytest.raises(ModelError, match="there is no model smollm: write smollm2, or OWNER/smollm for"):
        load_language_model("smollm")

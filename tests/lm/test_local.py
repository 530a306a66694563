"""Loading and using local models: from folders, end to end, with one clear sentence where that cannot work."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from ralm.errors import ModelError, UsageError
from ralm.evaluation.perplexity import check_plan
from ralm.lm.local.model import load_transformers_model
from ralm.lm.named import ModelOptions
from ralm.lm.scoring import Scorer
from ralm.protocols import UNLIMITED
from ralm.reading.plan import PlanOptions
from ralm.records import Request
from tests.tiny_models import FAMILIES, POSITIONS


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_number_formats(dtype: str, tiny_folders: dict[str, Path]) -> None:
    folder = str(tiny_folders["llama"])
    model = load_transformers_model(folder, ModelOptions(dtype=dtype))  # type: ignore[arg-type]
    assert model.config["dtype"] == dtype
    tokens = np.arange(40, dtype=np.int64)
    request = Request(document=tokens[:5], context=tokens[:20], targets=tokens[20:])
    exact = Scorer(load_transformers_model(folder)).log_probs([request])[0]
    np.testing.assert_allclose(Scorer(model).log_probs([request])[0], exact, atol=0.5)


def test_lengths(tiny_folders: dict[str, Path]) -> None:
    lengths = {family: load_transformers_model(str(folder)).max_length for family, folder in tiny_folders.items()}
    assert lengths == dict.fromkeys(FAMILIES, POSITIONS) | {"bloom": UNLIMITED}


def test_a_plan_longer_than_the_model_is_refused(tiny_folders: dict[str, Path]) -> None:
    model = load_transformers_model(str(tiny_folders["gpt2"]))
    with pytest.raises(UsageError, match="`max_length` 1024 is beyond the 64 tokens that .* give `max_length` 64"):
        check_plan(model, PlanOptions())
    with pytest.raises(ModelError, match="reads at most 64 tokens at once, not 65"):
        model.continuations().next_tokens([np.zeros(65, dtype=np.int64)])


def test_end_tokens(tiny_folders: dict[str, Path]) -> None:
    assert load_transformers_model(str(tiny_folders["gpt2"])).end_tokens == {257}


def test_the_fingerprint_is_that_of_what_the_tokenizer_does(tiny_folders: dict[str, Path]) -> None:
    prints = {family: load_transformers_model(str(f)).tokenizer.fingerprint for family, f in tiny_folders.items()}
    assert prints["gpt2"] == prints["gptj"] == prints["bloom"]
    assert prints["opt"] == prints["llama"] != prints["gpt2"]


def test_text_survives_encoding(tiny_folders: dict[str, Path]) -> None:
    tokenizer = load_transformers_model(str(tiny_folders["gpt2"])).tokenizer
    text = "Tabs\tand  spaces , n't — ünïcode 中 😀\n\n <s> ."
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_folders_that_hold_no_model(tmp_path: Path, tiny_folders: dict[str, Path]) -> None:
    with pytest.raises(ModelError, match="there is no folder"):
        load_transformers_model(str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match=r"is not a model folder: it has no config\.json"):
        load_transformers_model(str(tmp_path))
    bare = tmp_path / "bare"
    shutil.copytree(tiny_folders["gpt2"], bare)
    (bare / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="bare has no weights"):
        load_transformers_model(str(bare))
    with pytest.raises(ModelError, match="is a file; give the folder"):
        load_transformers_model(str(bare / "config.json"))


def test_a_truncated_weight_file(tmp_path: Path, tiny_folders: dict[str, Path]) -> None:
    shutil.copytree(tiny_folders["gpt2"], tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot load the model of"):
        load_transformers_model(str(tmp_path / "model"))


def test_a_folder_without_tokenizer(tmp_path: Path, tiny_folders: dict[str, Path]) -> None:
    shutil.copytree(tiny_folders["gpt2"], tmp_path / "model")
    for file in (tmp_path / "model").glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelError, match="tokenizer"):
        load_transformers_model(str(tmp_path / "model"))


def test_a_hub_that_cannot_be_reached() -> None:
    with pytest.raises(ModelError, match="no such folder here, so it was looked for on the model hub"):
        load_transformers_model("nobody/has-this-model")


def test_devices_that_are_not_there(tiny_folders: dict[str, Path]) -> None:
    folder = str(tiny_folders["gpt2"])
    with pytest.raises(ModelError, match="`device` must be auto, all, map, cpu"):
        load_transformers_model(folder, ModelOptions(device="abacus"))
    if not torch.cuda.is_available():
        with pytest.raises(ModelError, match="but none is available; use `device=.cpu.`"):
            load_transformers_model(folder, ModelOptions(device="cuda"))


def test_a_model_spread_over_devices(tiny_folders: dict[str, Path]) -> None:
    pytest.importorskip("accelerate")
    folder = str(tiny_folders["llama"])
    tokens = np.arange(40, dtype=np.int64)
    request = Request(document=tokens[:5], context=tokens[:20], targets=tokens[20:])
    spread = Scorer(load_transformers_model(folder, ModelOptions(device="map"))).log_probs([request])[0]
    np.testing.assert_allclose(spread, Scorer(load_transformers_model(folder)).log_probs([request])[0], rtol=1e-5)


@pytest.mark.campaign
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles with a C++ compiler")
def test_compiled_layers_give_the_same(tiny_folders: dict[str, Path]) -> None:
    tokens = np.arange(40, dtype=np.int64)
    requests = [Request(document=tokens[:5], context=tokens[:n], targets=tokens[n : n + 4]) for n in (9, 20, 33)]
    plain = load_transformers_model(str(tiny_folders["gpt2"]), ModelOptions(device="cpu"))
    compiled = load_transformers_model(str(tiny_folders["gpt2"]), ModelOptions(device="cpu", compile=True))
    assert (plain.config["compiled"], compiled.config["compiled"]) == (False, True)
    for found, expected in zip(Scorer(compiled).log_probs(requests), Scorer(plain).log_probs(requests), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4)

"""Loading and using local models: which folders are models, fingerprints, number formats and devices."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from safetensors.torch import load_file, save_file
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertLMHeadModel,
    CLIPVisionConfig,
    LlamaForSequenceClassification,
    LlamaModel,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from ralm.errors import ModelError, UsageError
from ralm.evaluation.perplexity import check_plan
from ralm.lm.local.loading import no_bars, weights_fingerprint
from ralm.lm.local.model import LocalLanguageModel, load_transformers_model
from ralm.lm.registry import ModelOptions
from ralm.lm.scoring import Scorer
from ralm.protocols import UNLIMITED
from ralm.reading.plan import PlanOptions
from ralm.records import Request
from tests.tiny_models import FAMILIES, POSITIONS, VOCABULARY, byte_tokenizer, save_tiny_model, tiny_config


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_number_formats(dtype: str, tiny_folders: dict[str, Path]) -> None:
    folder = str(tiny_folders["llama"])
    model = load_transformers_model(folder, ModelOptions(dtype=dtype))  # type: ignore[arg-type]
    assert model.config["dtype"] == dtype
    exact = Scorer(load_transformers_model(folder)).log_probs([REQUEST])[0]
    np.testing.assert_allclose(Scorer(model).log_probs([REQUEST])[0], exact, atol=0.5)


def test_lengths(tiny_folders: dict[str, Path]) -> None:
    lengths = {family: load_transformers_model(str(folder)).max_length for family, folder in tiny_folders.items()}
    assert lengths == dict.fromkeys(FAMILIES, POSITIONS) | {"bloom": UNLIMITED}


def test_a_plan_longer_than_the_model_is_rejected(tiny_folders: dict[str, Path]) -> None:
    model = load_transformers_model(str(tiny_folders["gpt2"]))
    with pytest.raises(UsageError, match="`max_length` 1024 is beyond the 64 tokens that .* give `max_length` 64"):
        check_plan(model, PlanOptions())
    with pytest.raises(ModelError, match="reads at most 64 tokens at once, not 65"):
        model.continuations().next_tokens([np.zeros(65, dtype=np.int64)])


def test_tokens_of_folders(tiny_folders: dict[str, Path]) -> None:
    models = {family: load_transformers_model(str(folder)) for family, folder in tiny_folders.items()}
    prints = {family: model.tokenizer.fingerprint for family, model in models.items()}
    assert prints["gpt2"] == prints["gptj"] == prints["bloom"]
    assert prints["opt"] == prints["llama"] != prints["gpt2"]
    assert models["gpt2"].end_tokens == {257}
    text = "Tabs\tand  spaces , n't — ünïcode 中 😀\n\n <s> ."
    assert models["gpt2"].tokenizer.decode(models["gpt2"].tokenizer.encode(text)) == text


def test_folders_that_hold_no_model(tmp_path: Path, tiny_folders: dict[str, Path]) -> None:
    bare, damaged, untold = (Path(shutil.copytree(tiny_folders["gpt2"], tmp_path / name)) for name in "bdu")
    (bare / "model.safetensors").unlink()
    (damaged / "model.safetensors").write_bytes((damaged / "model.safetensors").read_bytes()[:1000])
    for file in untold.glob("tokenizer*"):
        file.unlink()
    for name, message in (
        (str(tmp_path / "nowhere"), "there is no folder"),
        (str(tmp_path), r"is not a model folder: it has no config\.json"),
        (str(bare), "b has no weights"),
        (str(bare / "config.json"), "is a file; give the folder"),
        (str(damaged), "cannot load the model of"),
        (str(untold), "has no tokenizer"),
        ("nobody/has-this-model", "no such folder here, so it was looked for on the model hub"),
    ):
        with pytest.raises(ModelError, match=message):
            load_transformers_model(name)


def test_devices_that_are_not_there(tiny_folders: dict[str, Path]) -> None:
    missing = [] if torch.cuda.is_available() else ["cuda"]
    for device in ("abacus", *missing, "meta", "mps", "cpu,xpu"):
        unusable = device.rpartition(",")[2]
        with pytest.raises(ModelError, match=f"the `device` '{unusable}' cannot be used: .* Give auto, cpu, cuda or"):
            load_transformers_model(str(tiny_folders["gpt2"]), ModelOptions(device=device))


def test_a_model_spread_over_devices(tiny_folders: dict[str, Path]) -> None:
    pytest.importorskip("accelerate")
    folder = str(tiny_folders["llama"])
    spread = Scorer(load_transformers_model(folder, ModelOptions(device="map"))).log_probs([REQUEST])[0]
    np.testing.assert_allclose(spread, Scorer(load_transformers_model(folder)).log_probs([REQUEST])[0], rtol=1e-5)


TEXT = np.arange(40, 60, dtype=np.int64)
REQUEST = Request(document=TEXT[:3], context=TEXT[3:12], targets=TEXT[12:])
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": 258}


def saved(model: PreTrainedModel, folder: Path) -> str:
    model.save_pretrained(folder)
    byte_tokenizer(with_bos=False).save_pretrained(folder)
    return str(folder)


def test_a_model_without_output_layer_is_rejected(tmp_path: Path) -> None:
    config = tiny_config("llama")
    for model in (LlamaModel(config), LlamaForSequenceClassification(config)):
        folder = saved(model, tmp_path / type(model).__name__)
        with pytest.raises(ModelError, match=r"lacks weights of a language model: lm_head\.weight\. Give a checkpoint"):
            load_transformers_model(folder)


def test_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    save_tiny_model("gpt2", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for name in [name for name in weights if ".mlp." in name]:
        del weights[name]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"transformer\.h\.0\.mlp\.c_fc\.bias, .* and 5 more"):
        load_transformers_model(str(tmp_path))


def change_config(folder: Path, **settings: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))


def test_weights_of_another_shape_are_rejected(tmp_path: Path) -> None:
    save_tiny_model("gpt2", tmp_path)
    change_config(tmp_path, n_positions=32)
    with pytest.raises(ModelError, match="cannot load the model|another shape"):
        load_transformers_model(str(tmp_path))


def test_an_encoder_decoder_is_rejected(tmp_path: Path) -> None:
    config = BartConfig(vocab_size=VOCABULARY, d_model=32, encoder_layers=1, decoder_layers=1, pad_token_id=258)
    with pytest.raises(ModelError, match=r"is an encoder-decoder \(bart\)"):
        load_transformers_model(saved(BartForConditionalGeneration(config), tmp_path))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_bert_is_rejected_unless_it_is_a_decoder(dtype: str, tmp_path: Path) -> None:
    options = ModelOptions(dtype=dtype)  # type: ignore[arg-type]
    for decoder in (False, True):
        config = BertConfig(
            **SIZES, num_attention_heads=4, intermediate_size=64, is_decoder=decoder, initializer_range=0.3
        )
        folder = saved(BertLMHeadModel(config), tmp_path / str(decoder))
        if decoder:
            load_transformers_model(folder, options)
        else:
            with pytest.raises(ModelError, match=r"looks at later tokens \(bert\)"):
                load_transformers_model(folder, options)


def test_the_language_model_of_one_that_sees(tmp_path: Path) -> None:
    torch.manual_seed(0)
    eye = CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
    )
    llava = LlavaForConditionalGeneration(
        LlavaConfig(vision_config=eye, text_config=tiny_config("llama"), image_token_id=258)
    ).eval()
    model = load_transformers_model(saved(llava, tmp_path))
    assert model.max_length == 64
    with torch.no_grad():
        logits_NV = llava(input_ids=torch.from_numpy(TEXT)[None]).logits[0]
    expected = logits_NV.log_softmax(-1)[np.arange(11, 19), TEXT[12:]].numpy()
    np.testing.assert_allclose(Scorer(model).log_probs([REQUEST])[0], expected, rtol=1e-4)
    found = model.continuations().next_tokens([TEXT[:9], TEXT[:5]]).log_probs_BC
    np.testing.assert_allclose(found, logits_NV.log_softmax(-1)[[8, 4]].numpy(), rtol=1e-3, atol=1e-4)


def fingerprints(model: LocalLanguageModel) -> tuple[object, object]:
    return model.config["weights"], model.config["settings"]


def test_equal_weights_have_one_fingerprint_whatever_the_file(tmp_path: Path) -> None:
    one = load_transformers_model(str(save_tiny_model("gpt2", tmp_path / "one")))
    again = load_transformers_model(str(save_tiny_model("gpt2", tmp_path / "again")))
    torch.save(one.model.state_dict(), tmp_path / "again" / "pytorch_model.bin")
    (tmp_path / "again" / "model.safetensors").unlink()
    pickled = load_transformers_model(str(tmp_path / "again"))
    assert fingerprints(one) == fingerprints(again) == fingerprints(pickled)
    other = load_transformers_model(str(save_tiny_model("gpt2", tmp_path / "other", seed=1)))
    assert other.config["weights"] != one.config["weights"]
    assert other.config["settings"] == one.config["settings"]


def test_one_number_at_either_end_of_a_large_tensor_shows(tmp_path: Path) -> None:
    model = load_transformers_model(str(save_tiny_model("gpt2", tmp_path))).model
    large = torch.nn.Parameter(torch.zeros(1000, 321), requires_grad=False)
    model.transformer.wpe.weight = large
    prints = {weights_fingerprint(model)}
    for place in ((0, 0), (999, 320), (0, 1)):
        large[place] += 1
        prints.add(weights_fingerprint(model))
    assert len(prints) == 4


def test_settings_that_change_figures_change_the_fingerprint(tmp_path: Path) -> None:
    one = load_transformers_model(str(save_tiny_model("llama", tmp_path)))
    change_config(tmp_path, rms_norm_eps=0.1, transformers_version="5.0.0")
    other = load_transformers_model(str(tmp_path))
    assert one.config["weights"] == other.config["weights"]
    assert one.config["settings"] != other.config["settings"]


@pytest.mark.parametrize(("of_transformers", "of_hub"), [(True, True), (True, False), (False, True)])
def test_bars_of_other_libraries_are_off_while_loading_and_then_as_before(of_transformers: bool, of_hub: bool) -> None:
    (transformers_logging.enable_progress_bar if of_transformers else transformers_logging.disable_progress_bar)()
    (enable_progress_bars if of_hub else disable_progress_bars)()
    try:
        with pytest.raises(InterruptedError), no_bars():
            assert not transformers_logging.is_progress_bar_enabled()
            assert are_progress_bars_disabled()
            raise InterruptedError
        assert transformers_logging.is_progress_bar_enabled() is of_transformers
        assert are_progress_bars_disabled() is not of_hub
    finally:
        transformers_logging.enable_progress_bar()

"""Language models as cross-encoders."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    ModernBertDecoderConfig,
    ModernBertDecoderForCausalLM,
)

from ralm.errors import ModelError
from ralm.reranking.cross_encoder import PairModel, load_pair_model
from tests.tiny_encoders import save_tiny_cross_encoder
from tests.tiny_models import FAMILIES, POSITIONS, save_tiny_model

PAIRS = [("ends so", "a passage"), ("and so on", "b"), ("", "no end"), ("so", "long " * 30), ("x", "one")]


SIZES = {"vocab_size": 259, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 258}


def copy_tokenizer(source: Path, target: Path) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (target / file).write_bytes((source / file).read_bytes())


def with_a_head(source: str, tokens: int, max_length: int) -> PairModel:
    """A language model with a new head, whose weights are no longer 0."""
    model = load_pair_model(source, tokens, max_length=max_length, new=True)
    transformer: Any = model.model.model
    assert not transformer.score.weight.any(), "what is known without training decides at first"
    torch.manual_seed(0)
    torch.nn.init.normal_(transformer.score.weight)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_read_where_the_prefix_ends_behind_the_passage(family: str, tmp_path: Path) -> None:
    model = with_a_head(str(save_tiny_model(family, tmp_path / "lm")), 12, POSITIONS)
    assert model.passage_first
    scores = model.scores(PAIRS)
    model.save(tmp_path / "saved")
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    for (end, passage), score in zip(PAIRS, scores.tolist(), strict=True):
        behind = tokenizer(end, add_special_tokens=False)["input_ids"]
        before = tokenizer(passage, add_special_tokens=False)["input_ids"][: POSITIONS - len(behind)]
        with torch.no_grad():
            hidden_N = plain.base_model(input_ids=torch.tensor([before + behind])).last_hidden_state[0]
            expected = float(plain.score(hidden_N[-1]))
        assert score == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert np.ptp(scores) > 0.01


def test_a_head_of_another_name(tmp_path: Path) -> None:
    lm = save_tiny_model("gpt2", tmp_path / "lm")
    config = ModernBertDecoderConfig(**SIZES, intermediate_size=32, max_position_embeddings=POSITIONS)
    ModernBertDecoderForCausalLM(config).save_pretrained(tmp_path / "decoder")
    copy_tokenizer(lm, tmp_path / "decoder")
    model = load_pair_model(str(tmp_path / "decoder"), 12, max_length=POSITIONS, new=True)
    assert model.scores(PAIRS).tolist() == [0.0] * len(PAIRS)


def test_its_folder_says_that_the_passage_comes_first(tmp_path: Path) -> None:
    model = with_a_head(str(save_tiny_model("llama", tmp_path / "lm")), 12, POSITIONS)
    model.save(tmp_path / "saved")
    for new in (False, True):  # to be used, and to be trained further
        again = load_pair_model(str(tmp_path / "saved"), new=new)
        assert (again.passage_first, again.tokens) == (True, 12)
        np.testing.assert_allclose(again.scores(PAIRS), model.scores(PAIRS), rtol=1e-5, atol=1e-6)
    assert again.config["passage_first"] is True
    encoder = load_pair_model(str(save_tiny_cross_encoder(tmp_path / "encoder")))
    assert (encoder.passage_first, encoder.config["passage_first"]) == (False, False)


def test_what_its_folder_says_must_make_sense(tmp_path: Path) -> None:
    load_pair_model(str(save_tiny_cross_encoder(tmp_path / "own")), 12).save(tmp_path / "saved")
    file = tmp_path / "saved" / "config.json"
    config = json.loads(file.read_text())
    for name, value, place in (
        ("passage_first", "yes", "passage_first 'yes'; train it again"),
        ("tokens", 0, "tokens 0; train it again"),
        ("tokens", "many", "tokens 'many'"),
    ):
        file.write_text(json.dumps(config | {"ralm": config["ralm"] | {name: value}}))
        with pytest.raises(ModelError, match=rf"saved is damaged: its config\.json has the ralm\.{place}"):
            load_pair_model(str(tmp_path / "saved"))


def test_a_tokenizer_without_a_token_for_padding(tmp_path: Path) -> None:
    lm = save_tiny_model("gpt2", tmp_path / "lm")
    config = json.loads((lm / "tokenizer_config.json").read_text())
    del config["pad_token"], config["eos_token"]
    (lm / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="lm has neither a padding token nor an end token, which a reranker needs"):
        load_pair_model(str(lm), 12, max_length=POSITIONS, new=True)


def test_the_model_of_the_package(tmp_path: Path) -> None:
    model = with_a_head("ralm-tiny", 20, 60)
    alone = [float(model.scores([pair])[0]) for pair in PAIRS]
    np.testing.assert_allclose(model.scores(PAIRS), alone, rtol=1e-4, atol=1e-5)
    assert len(set(alone)) == len(PAIRS)

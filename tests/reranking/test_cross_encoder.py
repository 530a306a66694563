"""Language models as cross-encoders, and the likelihood of the end of a prefix beside their scores."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, processors
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Gemma2Config,
    Gemma2ForCausalLM,
    ModernBertDecoderConfig,
    ModernBertDecoderForCausalLM,
)

from ralm.errors import ModelError
from ralm.reranking import cross_encoder
from ralm.reranking.cross_encoder import PairModel, PrefixLikelihood, load_pair_model
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
        ("likelihood", {"weight": -1, "decay": 3}, r"likelihood\.weight -1"),
        ("likelihood", {"weight": 1, "decay": 0}, r"likelihood\.decay 0"),
        ("likelihood", {"weight": 1, "decay": float("inf")}, r"likelihood\.decay"),
        ("likelihood", {"weight": 1}, r"likelihood\.decay"),
        ("likelihood", "much", "likelihood 'much'"),
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


TIED = ("gpt2", "gpt_neo", "opt", "bloom")
"""Families whose tokens have the same vectors on the way in and out."""
LIKELIHOOD = PrefixLikelihood(weight=0.7, decay=3.0)


def loaded(folder: Path) -> PairModel:
    return load_pair_model(str(folder), 12, max_length=POSITIONS, new=True)


def plain_log_probs(folder: Path, end: str, passage: str) -> list[float]:
    """The log-probabilities of the tokens of an end behind a passage, from the last one on, by the whole model."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    behind = tokenizer(end, add_special_tokens=False)["input_ids"]
    before = tokenizer(passage, add_special_tokens=False)["input_ids"][: POSITIONS - len(behind)]
    with torch.no_grad():
        log_probs_TV = model(input_ids=torch.tensor([before + behind])).logits[0].log_softmax(-1)
    found = [float(log_probs_TV[len(before) + place - 1, token]) for place, token in enumerate(behind)]
    return found[::-1]


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_are_those_of_the_language_model(family: str, tmp_path: Path) -> None:
    folder = save_tiny_model(family, tmp_path / "lm")
    model = loaded(folder)
    assert model.reads_ends == (family in TIED)
    if not model.reads_ends:
        return
    found_PJ = model.end_log_probs(PAIRS, 12)
    assert found_PJ.shape == (5, 12)
    assert found_PJ.dtype == np.float32
    for (end, passage), found_J in zip(PAIRS, found_PJ.tolist(), strict=True):
        expected = plain_log_probs(folder, end, passage)
        assert found_J == pytest.approx(expected + [0.0] * (12 - len(expected)), rel=1e-4, abs=1e-4)


def test_they_count_less_the_further_they_are_from_the_end(tmp_path: Path) -> None:
    folder = save_tiny_model("gpt2", tmp_path / "lm")
    model = loaded(folder)
    torch.nn.init.normal_(model.model.model.score.weight)
    head = model.scores(PAIRS)
    model.likelihood = LIKELIHOOD
    scores = model.scores(PAIRS)
    for (end, passage), score, own in zip(PAIRS, scores.tolist(), head.tolist(), strict=True):
        counted = enumerate(plain_log_probs(folder, end, passage))
        assert score == pytest.approx(own + sum(0.7 * math.exp(-j / 3) * one for j, one in counted), rel=1e-3, abs=1e-3)
    alone = [float(model.scores([pair])[0]) for pair in PAIRS]
    np.testing.assert_allclose(scores, alone, rtol=1e-4, atol=1e-4)
    assert LIKELIHOOD.places == 14, "the last one counts exp(-13 / 3) = 0.013"
    assert math.exp(-LIKELIHOOD.places / LIKELIHOOD.decay) < 0.01


def test_pairs_are_read_in_pieces_with_the_same_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(save_tiny_model("gpt2", tmp_path / "lm"))
    model.likelihood = LIKELIHOOD
    words = model.model.model.get_input_embeddings().weight
    found = []
    for logits in (1 << 25, 1, 2 * 9 * 259):
        monkeypatch.setattr(cross_encoder, "_MAX_LOGITS", logits)
        scores_P = model.logits(PAIRS)
        words.grad = None
        (scores_P * torch.arange(1, 6)).sum().backward()  # type: ignore[no-untyped-call]
        found.append((scores_P.detach(), words.grad))
    for scores_P, gradient in found[1:]:
        torch.testing.assert_close(scores_P, found[0][0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradient, found[0][1], rtol=1e-4, atol=1e-5)


def test_its_folder_says_how_much_they_count(tmp_path: Path) -> None:
    model = loaded(save_tiny_model("gpt2", tmp_path / "lm"))
    model.likelihood = LIKELIHOOD
    model.save(tmp_path / "saved")
    again = load_pair_model(str(tmp_path / "saved"))
    assert again.likelihood == LIKELIHOOD
    assert again.config["likelihood"] == {"weight": 0.7, "decay": 3.0}
    np.testing.assert_allclose(again.scores(PAIRS), model.scores(PAIRS), rtol=1e-5, atol=1e-5)
    further = load_pair_model(str(tmp_path / "saved"), new=True)
    assert (further.likelihood, further.reads_ends) == (None, True), "a new training fits its own"


def test_capped_logits_and_tokens_behind_the_end_are_noticed(tmp_path: Path) -> None:
    folder = save_tiny_model("gpt2", tmp_path / "lm")
    own: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = own.token_to_id("<eos>") if own.token_to_id("<eos>") is not None else 257
    name = own.id_to_token(end)
    own.post_processor = processors.TemplateProcessing(
        single=f"$A {name}", pair=f"$A $B {name}", special_tokens=[(name, end)]
    )
    capped = tmp_path / "capped"
    config = Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=8, intermediate_size=64, final_logit_softcapping=0.1)
    Gemma2ForCausalLM(config).save_pretrained(capped)
    copy_tokenizer(folder, capped)
    assert loaded(folder).reads_ends
    assert not loaded(capped).reads_ends
    own.save(str(folder / "tokenizer.json"))
    assert not loaded(folder).reads_ends

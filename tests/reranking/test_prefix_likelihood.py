"""How likely the end of a prefix is behind a passage, as a part of a reranker's score: against the model itself."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma2Config, Gemma2ForCausalLM

from ralm.errors import ModelError
from ralm.reranking import cross_encoder
from ralm.reranking.cross_encoder import PairModel, PrefixLikelihood, load_pair_model
from tests.tiny_models import FAMILIES, POSITIONS, save_tiny_model

PAIRS = [("ends so", "a passage"), ("and so on", "b"), ("", "no end"), ("so", "long " * 30), ("x", "one")]
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


@pytest.mark.parametrize(
    ("likelihood", "place"),
    [
        ({"weight": -1, "decay": 3}, "weight"),
        ({"weight": 1, "decay": 0}, "decay"),
        ({"weight": 1, "decay": float("inf")}, "decay"),
        ({"weight": 1}, "decay"),
        ("much", ""),
    ],
)
def test_what_its_folder_says_must_make_sense(likelihood: object, place: str, tmp_path: Path) -> None:
    model = loaded(save_tiny_model("gpt2", tmp_path / "lm"))
    model.save(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    config["ralm"]["likelihood"] = likelihood
    (tmp_path / "saved" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=rf"saved is damaged: its config\.json has the ralm\.likelihood\.?{place}"):
        load_pair_model(str(tmp_path / "saved"))


def test_capped_logits_and_tokens_behind_the_end_are_noticed(tmp_path: Path) -> None:
    folder = save_tiny_model("gpt2", tmp_path / "lm")
    own: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = own.token_to_id("<eos>") if own.token_to_id("<eos>") is not None else 257
    name = own.id_to_token(end)
    own.post_processor = processors.TemplateProcessing(
        single=f"$A {name}", pair=f"$A $B {name}", special_tokens=[(name, end)]
    )
    capped = tmp_path / "capped"
    Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=259,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=64,
            pad_token_id=258,
            final_logit_softcapping=0.1,
        )
    ).save_pretrained(capped)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (capped / file).write_bytes((folder / file).read_bytes())
    assert loaded(folder).reads_ends
    assert not load_pair_model(str(capped), 12, max_length=POSITIONS, new=True).reads_ends
    own.save(str(folder / "tokenizer.json"))
    assert not loaded(folder).reads_ends

"""Choosing with a cross-encoder or a language model as one: its scores, what it reads, and what is refused."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder as TheirCrossEncoder
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

import ralm
from ralm.errors import ModelError, PartError, UsageError
from ralm.reading.parts import Parts
from ralm.records import FloatArray, Hits, IntArray, Passages
from ralm.reranking import RERANKERS
from ralm.reranking.cross_encoder import PairModel, load_pair_model
from ralm.reranking.predictive import Pair, PairScorer, Predictive, load_cross_encoder
from ralm.storage.store import Store
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, passages_of
from tests.tiny_encoders import LENGTH, save_tiny_bert, save_tiny_cross_encoder
from tests.tiny_models import FAMILIES, POSITIONS, save_tiny_model

PASSAGES = passages_of("a b c a b c", "c d e c d e", "a d a d", "x y z")
TEXT = "a b c d e a b c d a d a b c " * 3
PLAN = ralm.PlanOptions(stride=4, query_tokens=4, document_tokens=12, max_length=40)


class Counting:
    """Scores a pair by how many letters of the end are in the passage, and counts what it is asked."""

    config: Mapping[str, Any] = {"name": "counting"}

    def __init__(self, sign: int = 1) -> None:
        self.asked: list[Pair] = []
        self.sign = sign

    def end(self, prefix: str) -> str:
        return prefix[-6:]

    def scores(self, pairs: Sequence[Pair]) -> FloatArray:
        self.asked += pairs
        letters = [(set(end.replace(" ", "")), passage) for end, passage in pairs]
        return np.array([sum(map(passage.count, own)) * self.sign for own, passage in letters], dtype=np.float32)


class Rows:
    """Some prefixes."""

    def __init__(self, *prefixes: str) -> None:
        self.prefixes = prefixes
        self.queries = prefixes
        self.strides = np.arange(len(prefixes))

    def __len__(self) -> int:
        return len(self.prefixes)

    def prefix(self, row: int) -> str:
        return self.prefixes[row]

    def prefix_log_probs(self, *_: Any) -> list[FloatArray]:
        raise AssertionError

    target_log_probs = prefix_log_probs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_cross_encoder(tmp_path_factory.mktemp("cross-encoder"))


def by_hand(hits: Hits, prefixes: Sequence[str], passages: Passages, model: Counting, k: int) -> list[list[int]]:
    found = []
    for row, prefix in enumerate(prefixes):
        numbers = [number for number, _ in hits.of(row)]
        score = {n: float(model.scores([(prefix[-6:], passages[n].contents)])[0]) for n in numbers}
        found.append(sorted(numbers, key=lambda n: -score[n])[:k])
    return found


def test_it_chooses_the_highest_scores_of_each_row() -> None:
    prefixes = ("a b c", "d e", "x y z", "", "a d")
    hits = Hits.from_pairs([[(0, 9), (1, 8), (2, 7)], [(1, 3), (2, 2)], [(3, 1)], [], [(3, 3), (1, 2), (2, 1)]])
    model = Counting()
    best = Predictive(cross_encoder=model).choose(Rows(*prefixes), hits, PASSAGES, 2)
    assert [[n for n, _ in best.of(row)] for row in range(5)] == by_hand(hits, prefixes, PASSAGES, model, 2)
    assert best.of(1) == [(1, 4.0), (2, 2.0)], "with the scores of the cross-encoder"
    assert best.of(2) == [(3, 0.0)], "a single hit is kept unread"
    assert ("x y z", "x y z") not in model.asked[:8]


def test_a_pair_is_scored_once(tmp_path: Path) -> None:
    model, hits = Counting(), Hits.from_pairs([[(0, 2), (1, 1)], [(0, 2), (1, 1)], [(1, 2), (2, 1)]])
    reranker = Predictive(cross_encoder=model)
    rows = Rows("a long text that ends with a d", "another text with a d", "a d")
    first = reranker.choose(rows, hits, PASSAGES, 1)
    assert len(model.asked) == len({*model.asked}) == 4, "ends that are equal, passages that are equal"
    assert reranker.choose(rows, hits, PASSAGES, 1).numbers_QK.tolist() == first.numbers_QK.tolist()
    assert len(model.asked) == 4
    with Store(tmp_path / "scores") as store:
        PairScorer(model, store).scores([("a", "b"), ("c", "d")])
    assert len(model.asked) == 6
    with Store(tmp_path / "scores") as store:
        scores = PairScorer(model, store).scores([("c", "d"), ("a", "b"), ("a", "c")])
    assert model.asked[6:] == [("a", "c")]
    assert scores.tolist() == [0, 0, 0]


def test_scores_are_those_of_sentence_transformers(folder: Path) -> None:
    model = load_pair_model(str(folder), 20)
    theirs = TheirCrossEncoder(str(folder), device="cpu")
    pairs = [("abc", "some words. " * (n % 7)) for n in range(70)] + [("end", "x" * (LENGTH + 50)), ("", "a")]
    expected = theirs.predict(pairs, activation_fn=nn.Identity(), show_progress_bar=False)
    np.testing.assert_allclose(model.scores(pairs), expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(model.scores(pairs)) > 0.01


def test_it_reads_the_last_tokens_of_the_prefix(folder: Path) -> None:
    model = load_pair_model(str(folder), 20)
    text = "the beginning " * 50 + "and  this is read"
    assert model.end(text).replace(" ", "") == ("beginning" * 2 + "andthisisread")[-20:]
    assert model.end("short") == "short"
    assert model.end("") == ""
    assert model.end("abc" + " " * 5000 + "def") == "abc" + " " * 5000 + "def", "white space is no token here"
    assert model.end("\ud800 lone") == "\ufffd lone"


def test_what_decides_the_scores_is_its_configuration(folder: Path, tmp_path: Path) -> None:
    own = load_pair_model(str(folder), 20).config
    assert own == load_pair_model(str(folder), 20).config
    other = load_pair_model(str(save_tiny_cross_encoder(tmp_path / "other", seed=1)), 20).config
    assert {name for name in own if own[name] != other[name]} == {"name", "weights"}
    assert load_pair_model(str(folder), 21).config["tokens"] == 21
    config = Predictive(cross_encoder=load_cross_encoder(str(folder)), candidates=8).config
    assert (config["reranker"], config["candidates"]) == ("predictive", 8)
    json.dumps(config)


def test_what_it_was_trained_with_is_read_from_its_folder(folder: Path, tmp_path: Path) -> None:
    assert load_pair_model(str(folder)).tokens == 64
    load_pair_model(str(folder), 30).save(tmp_path)
    saved = load_pair_model(str(tmp_path))
    assert saved.tokens == 30
    assert load_pair_model(str(tmp_path), 10).tokens == 10
    pairs = [("a b", "c d"), ("a b", "e")]
    plain = TheirCrossEncoder(str(tmp_path), device="cpu")
    np.testing.assert_allclose(plain.predict(pairs, show_progress_bar=False), saved.scores(pairs), rtol=1e-5, atol=1e-6)


def test_what_is_no_reranker_is_refused(folder: Path, tmp_path: Path) -> None:
    for name, message in (
        (save_tiny_cross_encoder(tmp_path / "three", labels=3), "gives 3 scores for a pair; a reranker gives one"),
        (save_tiny_bert(tmp_path / "bare"), "bare is an encoder without a head that scores pairs; train one"),
        (tmp_path / "nowhere", "there is no folder"),
    ):
        with pytest.raises(ModelError, match=message):
            load_pair_model(str(name))
    with pytest.raises(UsageError, match=f"200 tokens of the prefix leave too little .* at most {LENGTH // 2}"):
        load_pair_model(str(folder), 200)
    with pytest.raises(UsageError, match='`rerank="predictive"` needs cross_encoder=...: A folder that'):
        RERANKERS.parse("predictive")
    with pytest.raises(ModelError, match="cannot load the cross-encoder of .*: "):
        load_cross_encoder(str(folder), device="nowhere")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            [1.0, float("nan")],
            r"gives scores of shape \(2,\) and type float32 for 2 pairs; it should give one finite number for each",
        ),
        ([1.0], r"gives scores of shape \(1,\) and type float32 for 2 pairs; it should give one finite"),
        ([[1.0], [2.0]], r"gives scores of shape \(2, 1\)"),
    ],
)
def test_scores_that_are_not_one_number_for_each_pair_are_refused(given: Any, message: str, tmp_path: Path) -> None:
    class Odd(Counting):
        def scores(self, pairs: Sequence[Pair]) -> FloatArray:
            return np.array(given, dtype=np.float32)

    with Store(tmp_path / "scores") as store, pytest.raises(PartError, match=f"the cross-encoder Odd {message}"):
        PairScorer(Odd(), store).scores([("an end", "a b"), ("an end", "c d")])
        assert store.count() == 0, "nothing of it is kept"


def test_a_run_that_was_stopped_keeps_the_scores_of_pairs(tmp_path: Path) -> None:
    class Stopping(Counting):
        def scores(self, pairs: Sequence[Pair]) -> FloatArray:
            if self.asked:
                raise KeyboardInterrupt
            return super().scores(pairs)

    def run(out: Path, cross_encoder: Counting) -> IntArray:
        source = ralm.FromRetriever(SharedWordsRetriever(PASSAGES), PASSAGES, config={"retriever": "words"})
        reranker = Predictive(cross_encoder=cross_encoder, candidates=3)
        model = CountingModel(WordTokenizer("a b c d e".split()))
        evaluation = ralm.run_evaluation(out, TEXT, model, PLAN, source=source, parts=Parts(reranker=reranker))
        return evaluation.reading.scored.passages_T

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ralm.reranking.predictive._PAIRS_A_CALL", 5)
        whole = Counting()
        expected = run(tmp_path / "whole", whole)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "run", Stopping())
        rest = Counting()
        resumed = run(tmp_path / "run", rest)
        other = run(tmp_path / "other", Counting(-1))
    assert len(rest.asked) == len(whole.asked) - 5 > 0
    assert resumed.tolist() == expected.tolist()
    assert (other != expected).sum() > len(expected) / 2, "it decides what is read"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["config"]["reranker"] == {
        "reranker": "predictive",
        "candidates": 3,
        "cross_encoder": {"name": "counting"},
    }


def test_a_tokenizer_that_allows_more_than_the_model_reads(tmp_path: Path) -> None:
    folder = save_tiny_cross_encoder(tmp_path / "short")
    model = load_pair_model(str(folder), 8)
    model.model.max_seq_length = 2 * LENGTH
    for read in (model.scores, model.logits):
        with pytest.raises(ModelError, match="cannot read pairs"):
            read([("a b", "c d " * LENGTH)])


PAIRS = [("ends so", "a passage"), ("and so on", "b"), ("", "no end"), ("so", "long " * 30), ("x", "one")]


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
    for name, value in (("passage_first", "yes"), ("tokens", 0), ("rank_weight", -1), ("rank_weight", None)):
        file.write_text(json.dumps(config | {"ralm": config["ralm"] | {name: value}}))
        with pytest.raises(ModelError, match="cannot load the cross-encoder of .*saved: 1 validation error"):
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

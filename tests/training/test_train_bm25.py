"""Weights of query terms learned from signals: what they learn, what teaches nothing, and what is refused."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ralm.errors import FolderExistsError, UsageError
from ralm.protocols import Tokenizer
from ralm.records import FloatArray, Passage, ScoringSequence
from ralm.retrieval.analysis import ENGLISH
from ralm.retrieval.bm25.formula import Weighting, open_weighting
from ralm.retrieval.build import build_index
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.retriever import RetrieverOptions, open_retriever
from ralm.training.bm25 import fit_shape, train_bm25, weights_of
from ralm.training.losses import marginal_loss
from ralm.training.options import WeightingOptions
from ralm.training.signals import Signals, open_signals
from tests.cli.program import ralm
from tests.fakes import WordTokenizer
from tests.training.made_signals import save_signals, save_zipf_corpus

COUNT = 200
CANDIDATES = 16
WORDS = [f"word{number}" for number in range(120)]
TESTED = WeightingOptions(held_out=0.4)


class WantsWord:
    """A language model that the signals of `made` are of. It finds the continuation unlikely behind every passage that
    is not among their candidates."""

    name = "wants"
    max_length = 1000

    def __init__(self, tokenizer: Tokenizer, *, recent: bool = True, most: int = 1 << 30) -> None:
        self.tokenizer = tokenizer
        self.recent = recent
        self.passes = 0
        self.most = most

    @property
    def config(self) -> Mapping[str, Any]:
        return {"name": self.name, "weights": "recent" if self.recent else "early"}

    def score(self, passes: Sequence[ScoringSequence]) -> Iterable[FloatArray]:
        for one in passes:
            if self.passes == self.most:
                raise KeyboardInterrupt
            self.passes += 1
            yield np.full(len(one.targets_P), -5.0, np.float32)


def liking(query: str, passage: str, *, recent: bool) -> float:
    """The mean log-probability behind a passage: higher for each of the last four words of the query that it has,
    or with each of its first four."""
    words = query.split()
    return -5.0 + len({*(words[-4:] if recent else words[:4])} & {*passage.split()})


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Passages of random words."""
    folder = tmp_path_factory.mktemp("corpus") / "index"
    draws = np.random.default_rng(0)
    build_index([Passage(n, f"d{n}", "", " ".join(draws.choice(WORDS, 8))) for n in range(300)], folder)
    return open_index(folder)


def made(
    folder: Path, index: Index, config: Mapping[str, Any], *, recent: bool = True, permuted: bool = False
) -> Signals:
    """Signals of BM25's first candidates by which the last four of a query's twelve words matter, or the first four;
    `permuted` within each example."""
    draws = np.random.default_rng(1)
    queries = [" ".join(draws.choice(WORDS, 12, replace=False)) for _ in range(COUNT)]
    hits = index.bm25.retrieve(queries, CANDIDATES)
    means = [
        [liking(query, index.passages[number].text, recent=recent) for number, _ in hits.of(row)]
        for row, query in enumerate(queries)
    ]
    if permuted:
        means = [draws.permutation(row).tolist() for row in means]
    return save_signals(
        folder,
        index.fingerprint,
        queries,
        [[number for number, _ in hits.of(row)] for row in range(COUNT)],
        means,
        scores=[[score for _, score in hits.of(row)] for row in range(COUNT)],
        config={"model": dict(config), "candidates": {"exclude": False}},
    )


@pytest.mark.parametrize("recent", [True, False])
def test_the_words_that_matter_weigh_more(tmp_path: Path, index: Index, recent: bool) -> None:
    """The passages that weights bring up are scored too, and these help on held-out examples."""
    model = WantsWord(WordTokenizer(), recent=recent)
    signals = made(tmp_path / "signals", index, model.config, recent=recent)
    learned = train_bm25(signals, model, tmp_path / "out", TESTED, index=index)
    weights = learned.weighting.weights
    assert weights.index(max(weights)) == (0 if recent else 2)
    assert learned.shape[0 if recent else 2] > 2 * learned.shape[1]
    assert learned.gain > 0.1
    assert learned.interval[0] <= learned.gain <= learned.interval[1]
    assert learned.tried[0].weights == (1, 1, 1)
    assert max(one.gain for one in learned.tried) == next(one.gain for one in learned.tried if one.weights == weights)
    assert learned.examples + learned.held_out == COUNT
    assert model.passes > 0, "passages that the signals lack"
    kept = open_weighting(tmp_path / "out")
    assert kept == Weighting(weights, ENGLISH.recorded) == learned.weighting
    found = open_retriever(index, RetrieverOptions(weighting=tmp_path / "out"))
    assert found.config == index.bm25.weighted(kept).config


def test_permuted_signals_teach_nothing(tmp_path: Path, index: Index) -> None:
    model = WantsWord(WordTokenizer())
    signals = made(tmp_path / "signals", index, model.config, permuted=True)
    learned = train_bm25(signals, model, tmp_path / "out", TESTED, index=index)
    assert learned.weighting.is_plain or learned.interval[0] <= 0
    true = train_bm25(made(tmp_path / "true", index, model.config), model, tmp_path / "of-true", TESTED, index=index)
    assert true.interval[0] > 0
    assert true.gain > 5 * max(learned.gain, 0)


def test_what_does_not_gain_is_not_taken(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best weights of the training examples are worse on the held-out ones: the result is plain BM25."""
    model = WantsWord(WordTokenizer())
    signals = made(tmp_path / "signals", index, model.config)
    monkeypatch.setattr("ralm.training.bm25._Firsts.gains", _pretend)
    learned = train_bm25(signals, model, tmp_path / "out", TESTED, index=index)
    assert learned.best != (1, 1, 1)
    assert learned.gain < 0
    assert learned.weighting.weights == (1, 1, 1)
    assert open_weighting(tmp_path / "out").is_plain


def _pretend(_: object, retriever: Any, examples_E: np.ndarray) -> np.ndarray:
    """Weights gain on the many training examples, and lose on the few held-out ones."""
    sign = 1 if len(examples_E) > COUNT / 2 else -1
    return np.full(len(examples_E), sign * float("weights" in retriever.config))


def test_what_was_scored_is_not_scored_again(tmp_path: Path, index: Index) -> None:
    """A training that was stopped, with its last weights still to be scored, resumes to the same result."""
    model = WantsWord(WordTokenizer())
    signals = made(tmp_path / "signals", index, model.config)
    whole = train_bm25(signals, model, tmp_path / "whole", TESTED, index=index)
    stopped = WantsWord(model.tokenizer, most=model.passes // 2)
    with pytest.raises(KeyboardInterrupt):
        train_bm25(signals, stopped, tmp_path / "out", TESTED, index=index)
    with pytest.raises(UsageError, match="other settings"):
        train_bm25(signals, model, tmp_path / "out", replace(TESTED, seed=1), index=index)
    resumed = WantsWord(model.tokenizer)
    assert train_bm25(signals, resumed, tmp_path / "out", TESTED, index=index) == whole
    assert resumed.passes == model.passes - stopped.passes
    assert not (tmp_path / "out.unfinished").exists()


def test_the_fit_finds_planted_weights() -> None:
    """Signals drawn from softmax(weights * parts): Eq. 9 is smallest at about these weights."""
    draws = np.random.default_rng(0)
    planted = np.array([3.0, 1.0, 0.3])
    parts_EKG = draws.gamma(1.0, 1.0, (4000, 6, 3))
    scores_EK = parts_EKG @ planted
    chosen_E = (scores_EK + draws.gumbel(size=scores_EK.shape)).argmax(axis=1)
    log_probs_EK = np.where(np.arange(6) == chosen_E[:, None], 0.0, -50.0)
    there_EK = np.ones(scores_EK.shape, bool)
    there_EK[::2, 5] = False  # what is not there is not read
    log_probs_EK[::2, 5] = -np.inf
    parts_EKG[::2, 5] = 1000
    fitted_E = there_EK[np.arange(4000), chosen_E]
    shape_G = fit_shape(parts_EKG[fitted_E], log_probs_EK[fitted_E], there_EK[fitted_E])
    np.testing.assert_allclose(shape_G, planted, rtol=0.15)


def test_the_fit_is_where_the_loss_is_smallest() -> None:
    """By the loss that the predictive reranker learns with: its gradient vanishes at the fit."""
    draws = np.random.default_rng(0)
    parts_EKG, log_probs_EK = draws.gamma(1.0, 1.0, (200, 5, 3)), draws.normal(-8, 2, (200, 5))
    log_probs_EK += parts_EKG @ np.array([2.0, 1.0, 0.5])
    there_EK = draws.random((200, 5)) < 0.8
    there_EK[:, 0] = True
    fitted_G = torch.tensor(fit_shape(parts_EKG, log_probs_EK, there_EK)).log().requires_grad_()
    there = torch.from_numpy(there_EK)
    log_probs = torch.from_numpy(log_probs_EK)
    losses = [
        marginal_loss((torch.from_numpy(parts_EKG) * logs_G.exp()).sum(dim=2), log_probs, there).mean()
        for logs_G in (fitted_G, torch.zeros(3))
    ]
    losses[0].backward()  # type: ignore[no-untyped-call]
    assert losses[0] < losses[1] - 0.01
    assert fitted_G.grad is not None
    assert fitted_G.grad.abs().max() < 2e-3


def test_shapes_as_whole_numbers() -> None:
    shape_G = np.array([8.0, 4.0, 2.0])
    assert [weights_of(shape_G, heaviest) for heaviest in (1, 2, 3, 4)] == [(1, 1, 1), (2, 1, 1), (3, 2, 1), (4, 2, 1)]
    assert weights_of(np.array([1.0, 1.0, 5.0]), 3) == (1, 1, 3)
    assert weights_of(np.full(3, 0.7), 4) == (1, 1, 1)


def test_signals_that_cannot_be_used(tmp_path: Path, index: Index) -> None:
    model = WantsWord(WordTokenizer())
    signals = made(tmp_path / "signals", index, model.config)
    with pytest.raises(UsageError, match=r"measured with wants, and wants differs from it in weights: give"):
        train_bm25(signals, WantsWord(WordTokenizer(), recent=False), tmp_path / "out", index=index)
    other = tmp_path / "other"
    build_index([Passage(0, "d", "", "one passage")], other)
    with pytest.raises(UsageError, match="are of another index"):
        train_bm25(signals, model, tmp_path / "out", index=other)
    impossible = save_signals(
        tmp_path / "impossible",
        index.fingerprint,
        ["one", "two"],
        [[1, 2]] * 2,
        [[-1.0, -2.0]] * 2,
        baselines=[-np.inf, -1.0],
        config={"model": dict(model.config)},
    )
    with pytest.raises(UsageError, match="1 usable examples, which is not enough"):
        train_bm25(impossible, model, tmp_path / "out", index=index)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes").touch()
    with pytest.raises(FolderExistsError):
        train_bm25(signals, model, tmp_path / "taken", index=index)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_end_to_end(tmp_path: Path, tiny_folders: dict[str, Path]) -> None:
    """`ralm signals`, `ralm train bm25`, and its folder given to `ralm search` and `ralm check`."""
    save_zipf_corpus(tmp_path / "corpus.jsonl")
    lm = tiny_folders["gpt2"]
    index, signals, out = tmp_path / "index", tmp_path / "signals", tmp_path / "out"
    sizes = ["--prefix-tokens", 12, "--sequence-tokens", 32, "--query-tokens", 12, "--document-tokens", 30]
    for one in (
        ["index", tmp_path / "corpus.jsonl", "--out", index, "--words", 12],
        ["signals", tmp_path / "corpus.jsonl", "--index", index, "--lm", lm, "--out", signals, "--examples", 40,
         "--candidates", 3, *sizes],
    ):  # fmt: skip
        answer = ralm(*one)
        assert answer.status == 0, answer.err
    asked = ["train", "bm25", signals, "--index", index, "--out", out]
    answer = ralm(*asked, "--lm", lm)
    assert answer.status == 0, answer.err
    assert "weights 1, 1, 1" in answer.out
    assert "held-out examples, BM25 gains" in answer.out
    assert not (tmp_path / "out.unfinished").exists()
    assert ralm("check", out).status == 0
    found = ralm("search", index, "word1 word2", "--weighting", out, "--json")
    assert found.status == 0, found.err
    as_json = json.loads(ralm(*asked, "--lm", lm, "--force", "--json").out)
    assert as_json["tried"][0]["weights"] == [1, 1, 1]
    of = open_signals(signals)
    training_E, _ = of.split(0.3)
    first_E = (of.log_probs_EK[:, 0] - of.baseline_E)[training_E]
    np.testing.assert_allclose(
        as_json["tried"][0]["gain"],
        first_E.sum() / of.tokens_E[training_E].sum(),
        rtol=1e-5,
        err_msg="the first passages are those of the signals, without passages that give the continuation away",
    )
    refused = ralm(*asked, "--lm", "ralm-tiny", "--force")
    assert refused.status != 0
    assert "give the language model that they were measured with" in refused.err
    again = ralm(*asked, "--lm", lm)
    assert again.status != 0
    assert "already exists" in again.err

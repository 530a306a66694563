"""Weights of the lexical reranker fitted to signals: what they learn, what they gain, the command, what is rejected."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import ralm as library
from ralm.errors import FolderExistsError, UsageError
from ralm.reranking.lexical import BUILT_IN, LexicalWeights, open_lexical
from ralm.training.lexical import features_of, fit_lexical, train_lexical
from ralm.training.options import LexicalOptions
from ralm.training.signals import Signals
from tests.cli.program import done, ralm
from tests.reference import learning
from tests.training.made_signals import save_signals, save_zipf_corpus

NAMES = ("Anna", "Bert", "Carl", "Dora")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> library.Index:
    folder = tmp_path_factory.mktemp("index")
    texts = [f"Some words before, then {one} met {other} ." for one in NAMES for other in NAMES]
    library.build_index([library.Passage(n, f"p{n}", "", text) for n, text in enumerate(texts)], folder / "index")
    return library.open_index(folder / "index")


def signals_of(folder: Path, index: library.Index, count: int, *, helped: float) -> Signals:
    """Each prefix ends with two names; the passage that has both makes the continuation likelier by `helped`, whatever
    its rank."""
    draws = np.random.default_rng(1)
    prefixes, passages, means = [], [], []
    for _ in range(count):
        one, other = draws.integers(4, size=2)
        numbers = draws.permutation(16)[:6]
        numbers[draws.integers(6)] = 4 * one + other
        numbers = np.array([*dict.fromkeys(numbers.tolist())])
        prefixes.append(f"It is said that {NAMES[one]} met {NAMES[other]}")
        passages.append(numbers.tolist())
        noise = draws.normal(-3, 0.2, len(numbers))
        means.append((noise + helped * (numbers == 4 * one + other)).tolist())
    documents = [f"d{place % 20}" for place in range(count)]
    return save_signals(folder, index.fingerprint, prefixes, passages, means, documents=documents)


def test_it_learns_what_helps_and_says_when_nothing_does(tmp_path: Path, index: library.Index) -> None:
    helped = train_lexical(signals_of(tmp_path / "good", index, 200, helped=1.0), tmp_path / "good-out", index=index)
    assert helped.gains
    assert helped.fitted_over_first.low > 0.5
    assert helped.built_in_over_first.low > 0.4
    assert helped.weights.overlap + helped.weights.log_overlap > 0.5
    assert helped.weights.likelihood == 0
    assert (helped.examples + helped.held_out, helped.documents < 20) == (200, True)
    assert open_lexical(tmp_path / "good-out") == helped.weights
    noise = signals_of(tmp_path / "noise", index, 200, helped=0.0)
    nothing = train_lexical(noise, tmp_path / "noise-out", index=index)
    assert not nothing.gains
    with pytest.raises(FolderExistsError):
        train_lexical(noise, tmp_path / "noise-out", index=index)


def test_no_weights_near_the_fit_have_a_lower_loss_by_the_plain_loop(tmp_path: Path, index: library.Index) -> None:
    """The loss of Eq. 9 of In-Context RALM; the prior is that of one example in a thousand."""
    signals = signals_of(tmp_path / "signals", index, 60, helped=0.3)
    features_EKF = features_of(signals, index, np.arange(60), likelihood=True)
    assert features_EKF[:, :, 5].any()
    fitted = fit_lexical(features_EKF, signals.log_probs_EK)
    assert fitted.likelihood == 0, "it is the same for all candidates, but for rounding"
    there_EK = np.isfinite(signals.log_probs_EK)
    spread_F = features_EKF[there_EK].std(axis=0)

    def loss(weights: LexicalWeights) -> float:
        values = np.array([*asdict(weights).values()])
        total = float(((values * spread_F) ** 2).sum() / 2 / 9)
        for features_KF, log_probs_K in zip(features_EKF, signals.log_probs_EK, strict=True):
            there_K = np.isfinite(log_probs_K)
            scores = (features_KF[there_K] @ values).tolist()
            total += learning.marginal_loss(scores, log_probs_K[there_K].tolist())
        return total

    best = loss(fitted)
    for name, value in asdict(fitted).items():
        for step in (-0.05, 0.05):
            assert loss(replace(fitted, **{name: value + step})) >= best - 1e-6, name


def test_what_is_rejected(tmp_path: Path, index: library.Index) -> None:
    rows: list[tuple[int, int | None, float | None, list[float], list[float]]] = [
        (example, *hit, [], [-1.0] * 4) for example in range(40) for hit in ((None, None), (1, 2.0), (2, 1.0))
    ]
    given = ["x"] * 40, [[1, 2]] * 40, [[-1.0, -2.0]] * 40
    without = save_signals(tmp_path / "without", index.fingerprint, *given, rows=rows)
    with pytest.raises(UsageError, match="without was measured without `evidence`: measure it again, with it"):
        train_lexical(without, tmp_path / "out", LexicalOptions(likelihood=True), index=index)
    other = save_signals(tmp_path / "other", "another", *given)
    with pytest.raises(UsageError, match=r"are of another index \(fingerprint another\)"):
        train_lexical(other, tmp_path / "out", index=index)
    assert not (tmp_path / "out").exists()


def test_end_to_end(tmp_path: Path) -> None:
    """From signals to texts that are evaluated and generated with the weights."""
    save_zipf_corpus(tmp_path / "corpus.jsonl")
    text = " ".join(json.loads(line)["text"] for line in (tmp_path / "corpus.jsonl").read_text().splitlines()[:3])
    (tmp_path / "text.txt").write_text(text)
    index, signals, out = tmp_path / "index", tmp_path / "signals", tmp_path / "weights"
    done("index", tmp_path / "corpus.jsonl", "--out", index, "--words", 12)
    sizes = ["--prefix-tokens", 12, "--sequence-tokens", 32, "--query-tokens", 12, "--document-tokens", 30]
    done("signals", tmp_path / "corpus.jsonl", "--index", index, "--lm", "ralm-tiny", "--out", signals,
         "--examples", 40, "--candidates", 3, "--per-sequence", 2, *sizes)  # fmt: skip
    printed = done("train", "reranker", signals, "--likelihood", "--out", out).out
    assert ("nothing gained" in printed) != ("--lexical-weights" in printed)
    assert done("check", out)
    as_json = json.loads(done("train", "reranker", signals, "--likelihood", "--out", out, "--force", "--json").out)
    assert as_json["weights"] == asdict(open_lexical(out))
    assert as_json["weights"]["likelihood"] != 0
    model = ["--lm", "ralm-tiny", "--index", index, "--rerank", "lexical", "--candidates", 3, "--document-tokens", 30]
    plan = ["--max-length", 128, "--limit-tokens", 40]
    for more, weights in (([], BUILT_IN), (["--lexical-weights", out], open_lexical(out))):
        evaluated = json.loads(done("eval", tmp_path / "text.txt", *model, *more, *plan, "--json").out)
        assert evaluated["config"]["reranker"] == {"reranker": "lexical", "candidates": 3, "weights": asdict(weights)}
        done("generate", "word1 word2", *model, *more, "--new-tokens", 4)
    wrong: list[tuple[list[object], str]] = [
        (["--lexical-weights", signals], "is a ralm signals, not a ralm lexical reranker"),
        (["--rerank-decay", 3], "--rerank-decay has no effect without --rerank zero-shot"),
    ]
    for arguments, message in wrong:
        assert message in ralm("eval", tmp_path / "text.txt", *model, *plan, *arguments).err
    wrong = [
        (["--init", "gpt2"], "--init has no effect without --kind cross-encoder"),
        (["--steps", 3], "--steps has no effect without --kind cross-encoder"),
        (["--kind", "cross-encoder"], "--kind cross-encoder needs an --init"),
    ]
    for arguments, message in wrong:
        assert message in ralm("train", "reranker", signals, "--out", tmp_path / "none", *arguments).err

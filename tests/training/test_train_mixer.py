"""Weights of a mixer learned from signals: against plain loops, what they learn, and what is rejected."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm.cli.results import print_mixer
from ralm.errors import DamagedFolderError, NotAFolderOfThisKindError, UsageError
from ralm.reading import ReadingOptions
from ralm.reading.ensemble import Ensemble
from ralm.reading.mixers import EVIDENCE, MIXER_KIND, LearnedWeights, MixerOptions, open_mixer
from ralm.storage.manifest import write_manifest
from ralm.training.fitting import HeldOutGain
from ralm.training.mixer import (
    MixtureExamples,
    TrainedMixer,
    fit_temperature,
    fit_weights,
    read_examples,
    train_mixer,
)
from ralm.training.options import MixerTrainingOptions
from ralm.training.signals import Signals, open_signals
from tests.cli.program import ralm
from tests.reference import mixers
from tests.training.made_signals import save_signals, save_zipf_corpus

WEIGHTS = LearnedWeights(temperature=2.0, rank=-0.3, overlap=0.5, none=1.5, eta=0.4, decay=5.0)
Row = tuple[int, int | None, float | None, int | None, list[float], list[float]]


def made(
    folder: Path,
    seed: int,
    *,
    count: int = 6,
    k: int = 3,
    tokens: int = 4,
    documents: int = 3,
    helped: float | None = None,
    some_shorter: bool = False,
) -> Signals:
    """Signals of random figures, some with fewer candidates and fewer tokens before. With `helped`, all predictions are
    the same, but for one passage that makes every token likelier by so many nats."""
    draws = np.random.default_rng(seed)
    rows: list[Row] = []
    passages = []
    lengths = draws.integers(1, tokens + 1, count).tolist() if some_shorter else [tokens] * count
    for example in range(count):
        before, candidates, helping = int(draws.integers(20, 33)), int(draws.integers(0, k + 1)), int(draws.integers(k))
        if helped is not None:
            before, candidates = 32, k
        shared = draws.uniform(-5, -2, before + lengths[example])
        passages.append([*range(candidates)])
        for place in (None, *range(candidates)):
            figures = (
                draws.uniform(-5, -1, before + lengths[example])
                if helped is None
                else shared + helped * (place == helping)
            )
            hit = (None, None, None) if place is None else (place, float(draws.gamma(3)), int(draws.integers(5)))
            rows.append((example, *hit, figures[:before].tolist(), figures[before:].tolist()))
    names = [f"d{example % documents}" for example in range(count)]
    means = [[-1.0] * len(one) for one in passages]
    return save_signals(folder, "index", ["x"] * count, passages, means, tokens=lengths, documents=names, rows=rows)


def by_loops(signals: Signals, weights: LearnedWeights, documents: int) -> list[list[float]]:
    """The log-likelihood of each target of each example, from the rows of the files."""
    found = []
    rows = signals.candidates(np.arange(len(signals))).to_pylist()
    for example in range(len(signals)):
        plain, *others = [row for row in rows if row["example"] == example]
        read = others[:documents]
        log_probs = [[*row["before"], *row["log_probs"]] for row in (*read, plain)]
        first = len(plain["before"])
        given = [row["score"] for row in read], [row["overlap"] for row in read]
        found.append(mixers.log_likelihood(
            mixers.learned(*given, log_probs, first, asdict(weights)), log_probs, first
        ))  # fmt: skip
    return found


NUMBERS = st.floats(-2, 2)


@settings(max_examples=40)
@given(
    st.integers(0, 1 << 30),
    st.builds(LearnedWeights, temperature=st.floats(0.3, 9), rank=NUMBERS, overlap=NUMBERS, none=NUMBERS,
              eta=st.floats(0.01, 2), decay=st.floats(0.3, 50)),
)  # fmt: skip
def test_the_likelihood_equals_the_plain_loop_and_its_gradient_the_differences(
    tmp_path_factory: pytest.TempPathFactory, seed: int, weights: LearnedWeights
) -> None:
    """Continuations of different lengths end with targets that are certain."""
    signals = made(tmp_path_factory.mktemp("made") / "signals", seed, some_shorter=True)
    documents = min(2, signals.width)
    examples = read_examples(signals, np.arange(len(signals)), documents)
    found_ET = examples.log_likelihood(weights)
    for found_T, read in zip(found_ET, by_loops(signals, weights, documents), strict=True):
        np.testing.assert_allclose(found_T, np.pad(read, (0, examples.targets - len(read))), rtol=1e-5)
    logs = np.log([1 / weights.temperature, weights.eta, weights.decay])
    at_P = np.append(logs, [weights.rank, weights.overlap, weights.none])
    _, gradient_P = examples.with_gradient(at_P)
    for place, slope in enumerate(gradient_P):
        step = 1e-5 * (np.arange(6) == place)
        ends = [float(examples.with_gradient(at_P + sign * step)[0].mean()) for sign in (1, -1)]
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4, abs=1e-8)


def planted(count: int, seed: int, weights: LearnedWeights, k: int = 4, tokens: int = 4) -> MixtureExamples:
    """Examples whose first target is drawn from the mixture under these weights: a token that one prediction foretells
    with certainty nearly, and the others hardly."""
    draws = np.random.default_rng(seed)
    log_probs_EKN = draws.uniform(-4, -1, (count, k + 1, EVIDENCE + tokens))
    features_EKF = np.zeros((count, k + 1, 4))
    features_EKF[:, :k, 0] = draws.gamma(4, 2, (count, k))
    features_EKF[:, :k, 1] = np.log(np.arange(1, k + 1))
    features_EKF[:, :k, 2] = np.log1p(draws.integers(0, 6, (count, k)))
    features_EKF[:, k, 3] = 1
    ages_N = np.arange(EVIDENCE, 0, -1)
    evidence_EK = log_probs_EKN[:, :, :EVIDENCE] @ (weights.eta * np.exp(-ages_N / weights.decay))
    linear_F = [1 / weights.temperature, weights.rank, weights.overlap, weights.none]
    drawn_E = (features_EKF @ linear_F + evidence_EK + draws.gumbel(size=evidence_EK.shape)).argmax(axis=1)
    log_probs_EKN = log_probs_EKN[:, :, : EVIDENCE + 1]
    log_probs_EKN[:, :, EVIDENCE] = np.where(np.arange(k + 1) == drawn_E[:, None], -0.01, -9)
    return MixtureExamples(log_probs_EKN, features_EKF, np.ones((count, k + 1), dtype=np.bool_))


def test_the_fit_finds_planted_weights() -> None:
    fitted = fit_weights(planted(6000, 0, WEIGHTS))
    for name, value in asdict(fitted).items():
        assert value == pytest.approx(asdict(WEIGHTS)[name], rel=0.25, abs=0.12), name


@settings(max_examples=8)
@given(st.integers(0, 1 << 30))
def test_no_weights_near_the_fit_are_likelier_by_the_plain_loop(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """The likelihood and the prior, which counts about as much as it says: a normal one, of standard deviation 3."""
    signals = made(tmp_path_factory.mktemp("made") / "signals", seed, count=24)
    documents = min(3, signals.width)
    rows = signals.candidates(np.arange(len(signals))).to_pylist()
    scores = [row["score"] for row in rows if row["passage"] is not None and row["passage"] < documents]

    def value(weights: LearnedWeights) -> float:
        spread, middle = np.std(scores), np.mean(scores)
        logs = np.log([spread / weights.temperature, weights.eta / 0.5, weights.decay / 8])
        rest = [weights.rank, weights.overlap, weights.none - middle / weights.temperature]
        prior = sum(float(one) ** 2 for one in (*logs, *rest)) / 2 / 3**2
        return sum(map(sum, by_loops(signals, weights, documents))) - prior

    fitted = fit_weights(read_examples(signals, np.arange(len(signals)), documents))
    best = value(fitted)
    for name, one in asdict(fitted).items():
        for factor in (0.95, 1.05):
            assert value(replace(fitted, **{name: one * factor})) <= best + 1e-6, name


def test_the_best_temperature_is_the_best_of_many() -> None:
    examples = planted(200, 1, replace(WEIGHTS, eta=0, none=-50, rank=0, overlap=0))
    fitted = fit_temperature(examples)

    def likelihood(temperature: float) -> float:
        weights = LearnedWeights(temperature=temperature, rank=0, overlap=0, none=0, eta=0, decay=1)
        return float(examples.log_likelihood(weights, plain=False).mean())

    assert likelihood(fitted) >= max(map(likelihood, np.geomspace(0.1, 100, 60).tolist()))


def test_what_gains_and_what_does_not(tmp_path: Path) -> None:
    """The evidence tells which passage predicts the continuation; without such a passage there is nothing to gain."""
    options = MixerTrainingOptions(documents=3)
    helped = train_mixer(made(tmp_path / "good", 0, count=200, documents=40, helped=1.5), tmp_path / "mixer", options)
    assert helped.gains
    assert helped.over_best_temperature.low > 0.3
    assert helped.weights.eta > 0.1
    assert helped.examples + helped.held_out == 200
    assert open_mixer(tmp_path / "mixer") == helped.weights
    again = train_mixer(open_signals(tmp_path / "good"), tmp_path / "mixer", options, force=True)
    assert again == helped
    none = train_mixer(made(tmp_path / "noise", 0, count=200, documents=40, helped=0), tmp_path / "none", options)
    assert not none.gains
    assert none.over_none.low <= none.over_none.gain <= none.over_none.high


def test_documents_are_never_on_both_sides(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"too few documents to hold some out whole \(1; d0 would be on both sides\)"):
        train_mixer(
            made(tmp_path / "one", 0, count=30, documents=1), tmp_path / "mixer", MixerTrainingOptions(documents=2)
        )
    with pytest.raises(UsageError, match="`documents` 10 are more than the 3 candidates of an example"):
        train_mixer(made(tmp_path / "few", 0, count=60, documents=20), tmp_path / "mixer")
    hits = (None, None, None), (1, 2.0, 3), (2, 1.0, 0)
    rows: list[Row] = [(example, *hit, [], [-1.0] * 4) for example in range(60) for hit in hits]
    given = ["x"] * 60, [[1, 2]] * 60, [[-1.0, -2.0]] * 60
    without = save_signals(tmp_path / "without", "index", *given, rows=rows)
    with pytest.raises(UsageError, match="without was measured without `evidence`: measure it again, with it"):
        train_mixer(without, tmp_path / "mixer", MixerTrainingOptions(documents=2))
    assert not (tmp_path / "mixer").exists()


def test_folders_that_are_no_mixer(tmp_path: Path) -> None:
    made(tmp_path / "signals", 0)
    with pytest.raises(NotAFolderOfThisKindError, match="is a ralm signals, not a ralm mixer"):
        open_mixer(tmp_path / "signals")
    for number, weights in enumerate([{}, {**asdict(WEIGHTS), "decay": 0.0}, {**asdict(WEIGHTS), "more": 1.0}, None]):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_manifest(folder, kind=MIXER_KIND, settings={"mixer": weights}, counts={})
        with pytest.raises(DamagedFolderError, match="does not record the weights; train it again"):
            open_mixer(folder)


def test_options_of_learned_weights(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='`mixer="learned"` needs the folder that `ralm train mixer` made'):
        MixerOptions(mixer="learned")
    with pytest.raises(UsageError, match='no effect with `mixer="learned"`'):
        mixing = MixerOptions(mixer="learned", learned=tmp_path)
        ReadingOptions(reader="ensemble", ensemble=Ensemble(temperature=2), mixing=mixing)


def run(*arguments: object) -> str:
    answer = ralm(*arguments)
    assert answer.status == 0, answer.err
    return answer.out


@pytest.mark.slow
def test_end_to_end(tmp_path: Path) -> None:
    """From signals to texts that are evaluated, swept and generated with what was learned."""
    save_zipf_corpus(tmp_path / "corpus.jsonl")
    text = " ".join(json.loads(line)["text"] for line in (tmp_path / "corpus.jsonl").read_text().splitlines()[:3])
    (tmp_path / "text.txt").write_text(text)
    index, signals, out = tmp_path / "index", tmp_path / "signals", tmp_path / "mixer"
    run("index", tmp_path / "corpus.jsonl", "--out", index, "--words", 12)
    sizes = ["--prefix-tokens", 12, "--sequence-tokens", 32, "--query-tokens", 12, "--document-tokens", 30]
    run("signals", tmp_path / "corpus.jsonl", "--index", index, "--lm", "ralm-tiny", "--out", signals,
        "--examples", 24, "--candidates", 3, "--per-sequence", 2, *sizes)  # fmt: skip
    printed = run("train", "mixer", signals, "--documents", 3, "--out", out)
    assert "over similarity weights, temperature" in printed
    assert ("nothing to gain" in printed) != ("--mixer-weights" in printed)
    assert run("check", out)
    as_json = json.loads(run("train", "mixer", signals, "--documents", 3, "--out", out, "--force", "--json"))
    assert as_json["weights"] == asdict(open_mixer(out))
    learned = ["--lm", "ralm-tiny", "--index", index, "--reader", "ensemble", "--documents", 3, "--mixer", "learned"]
    plan = ["--max-length", 128, "--document-tokens", 30, "--limit-tokens", 40]
    evaluated = json.loads(run("eval", tmp_path / "text.txt", *learned, "--mixer-weights", out, *plan, "--json"))
    assert evaluated["config"]["reader"]["mixer"] == {"mixer": "learned", **as_json["weights"]}
    run("sweep", tmp_path / "text.txt", *learned, "--mixer-weights", out, *plan, "--over", "stride", "--values", "4,8")
    run("generate", "word1 word2", *learned, "--mixer-weights", out, "--new-tokens", 4, "--document-tokens", 30)
    asked = json.loads(run("ask", "word1 word2?", *learned, "--mixer-weights", out, "--prompt", "replug", "--json"))
    assert all(0 < (one["share"] or 1) <= 1 for one in asked["sources"])
    assert asked["log_prob"] < 0
    for arguments, message in (
        (learned, "give --mixer-weights too"),
        ([*learned, "--mixer-weights", signals], "is a ralm signals, not a ralm mixer"),
        ([*learned[:-1], "uniform", "--mixer-weights", out], "--mixer-weights has no effect without --mixer learned"),
    ):
        answer = ralm("eval", tmp_path / "text.txt", *arguments, *plan)
        assert answer.status != 0
        assert message in answer.err


def test_the_report_of_a_mixer_that_loses_with_a_huge_temperature(capsys: pytest.CaptureFixture[str]) -> None:
    """As measured with SmolLM2 and few signals: columns stay apart, and no interval includes 0."""
    loss = HeldOutGain(gain=-0.2, low=-0.3, high=-0.1)
    found = TrainedMixer(
        weights=WEIGHTS, best_temperature=1.47e7, examples=4, held_out=12, documents=3,
        over_none=loss, over_similarity=loss, over_best_temperature=loss,
    )  # fmt: skip
    print_mixer(Path("out"), found)
    printed = capsys.readouterr().out
    assert len({line.index(" -0.2") for line in printed.splitlines() if "  over" in line}) == 1
    assert "since an interval is not above 0" in printed

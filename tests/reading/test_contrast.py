"""Mixers that look at whole predictions, against plain loops over the vocabulary and the arithmetic of their papers."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from transformers import AutoModelForCausalLM

from ralm.errors import MixerError, UsageError
from ralm.evaluation.perplexity import evaluate_text
from ralm.lm.local import grouped
from ralm.lm.local.model import LocalLanguageModel, load_transformers_model
from ralm.lm.scoring import Scorer
from ralm.protocols import DistributionMixer, Mixer
from ralm.reading.contrast import AdaptiveContrast, Backoff, Contrast
from ralm.reading.ensemble import Ensemble
from ralm.reading.generate import TokenWriter, generate
from ralm.reading.in_context import stride_request
from ralm.reading.mixers import EntropyWeights, MixerOptions
from ralm.reading.mixing import CheckedMixer
from ralm.reading.plan import PlanOptions
from ralm.reading.provenance import TracedText, contributions, total_gain
from ralm.reading.sampling import GenerationOptions
from ralm.reading.score import score_text
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import PassageDocuments, PreparedText, prepare_text
from ralm.records import (
    NO_PASSAGE,
    DoubleArray,
    FloatArray,
    Hits,
    MixerNeeds,
    Predictions,
    PromptPrefix,
    ScoredTokens,
    ScoringSequence,
    TargetGroup,
)
from ralm.storage.store import Store
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, passages_of
from tests.reading.loops import PASSAGES, TEXT, some_hits, written
from tests.reading.test_mixers import PLANS
from tests.reference import ensemble, mixers

MIXERS: dict[str, Mixer | DistributionMixer] = {
    "entropy": EntropyWeights(temperature=0.5),
    "contrast": Contrast(alpha=0.7),
    "adaptive": AdaptiveContrast(),
    "floor": AdaptiveContrast(floor=0.4),
    "backoff": Backoff(margin=0.01),
}


class Whole:
    """A model that gives whole distributions to this process, and nothing that is reduced."""

    def __init__(self, model: Any) -> None:
        self.name, self.config, self.max_length = model.name, model.config, model.max_length
        self.tokenizer, self.score, self.distributions = model.tokenizer, model.score, model.distributions


def read(model: Any, prepared: PreparedText, hits: Hits, mixer: Mixer | DistributionMixer) -> ScoredTokens:
    return score_text(prepared, model, hits, PASSAGES, Ensemble(documents=3, mixer=mixer))


def plainly(
    mixer: Any, lambdas: Sequence[float], log_probs: Sequence[DoubleArray], plain: DoubleArray
) -> tuple[DoubleArray, list[float] | None]:
    """The mixed distribution, and the weights of the passages and of the prediction without if it is an average."""
    average = mixers.average(lambdas, log_probs)
    match mixer:
        case EntropyWeights():
            weights = mixers.by_entropy(log_probs, mixer.temperature)
            return mixers.average(weights, log_probs), weights
        case Contrast():
            return mixers.contrast(average, plain, mixer.alpha), None
        case AdaptiveContrast():
            return mixers.contrast(average, plain, max(mixers.divergence(average, plain), mixer.floor)), None
        case _:
            if mixers.backs_off(average, plain, mixer.margin):
                return plain, [0.0] * len(lambdas) + [1.0]
            return average, [*lambdas, 0.0]


@pytest.mark.parametrize("windows", PLANS)
def test_scores_equal_the_plain_loop(model: LocalLanguageModel, windows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in chunks of few targets, and by a model that gives whole distributions."""
    prepared = prepare_text(TEXT, model.tokenizer, PLANS[windows], limit_tokens=61)
    hits = some_hits(prepared, 3)
    documents = PassageDocuments.planned(PASSAGES, model.tokenizer, prepared.plan.options)
    monkeypatch.setattr(grouped, "LOGITS_PER_CHUNK", 7 * model.vocabulary)
    scored = {name: read(model, prepared, hits, mixer) for name, mixer in MIXERS.items()}
    for name in ("entropy", "contrast", "backoff"):
        whole = read(Whole(model), prepared, hits, MIXERS[name])
        np.testing.assert_allclose(whole.log_probs_T, scored[name].log_probs_T, atol=2e-5)
    at = 0
    for row in range(len(prepared.plan)):
        found = hits.of(row)
        numbers = [*(number for number, _ in found), NO_PASSAGE]
        requests = [stride_request(prepared.tokens, prepared.plan, row, documents[number]) for number in numbers]
        sequences = [np.concatenate([one.document, one.context, one.targets]) for one in requests]
        targets = requests[0].targets.tolist()
        of_each = [
            next(iter(model.distributions([ScoringSequence(one, np.arange(len(one) - len(targets), len(one)))])))
            for one in sequences
        ]
        for place, target in enumerate(targets):
            *log_probs, plain = (one[place].astype(float) for one in of_each)
            lambdas = ensemble.weights([score for _, score in found], 1.0) if found else []
            for name, mixer in MIXERS.items():
                mixed, weights = plainly(mixer, lambdas, log_probs, plain) if found else (plain, [1.0])
                assert scored[name].log_probs_T[at] == pytest.approx(mixed[target], abs=3e-5), (name, row)
                shares = scored[name].provenance.posteriors_TK[at]
                if weights is None:
                    assert np.isnan(shares[: len(numbers)]).all()
                    continue
                joint = np.array(
                    [w * math.exp(one[target]) for w, one in zip(weights, [*log_probs, plain], strict=False)]
                )
                np.testing.assert_allclose(shares[: len(joint)], joint / joint.sum(), rtol=1e-3, atol=1e-6)
            at += 1
    assert at == len(scored["contrast"])


LOGITS = st.lists(st.floats(-30, 30, width=32), min_size=6, max_size=6)


@given(LOGITS, LOGITS, st.floats(0, 3), st.floats(0, 1))
def test_the_arithmetic_of_cad_and_adacad_on_logits(
    one: list[float], other: list[float], alpha: float, floor: float
) -> None:
    """One passage: (1 + a) z_d - a z_0; AdaCAD's a is the divergence of the two softmaxes, here at least a floor."""
    logits, others = np.array(one), np.array(other)
    log_probs_KV = torch.tensor([one, other]).log_softmax(-1).numpy()
    prefixes = [PromptPrefix(np.zeros(1, np.int64), (0,)), PromptPrefix(np.zeros(0, np.int64), log_weight=-np.inf)]
    _, cad_V = CheckedMixer(Contrast(alpha=alpha)).next_token(prefixes, log_probs_KV)
    _, adaptive_V = CheckedMixer(AdaptiveContrast(floor=floor)).next_token(prefixes, log_probs_KV)
    assert cad_V is not None
    assert adaptive_V is not None
    np.testing.assert_allclose(np.exp(cad_V), np.exp(mixers.contrast(logits, others, alpha)), atol=1e-5)
    weight = max(mixers.divergence(logits, others), floor)
    assert mixers.divergence(logits, others) <= math.log(2) + 1e-9
    np.testing.assert_allclose(np.exp(adaptive_V), np.exp(mixers.contrast(logits, others, weight)), atol=1e-5)


def test_impossible_tokens_stay_impossible() -> None:
    """A token that no passage allows stays impossible, and one that only the passages allow makes no NaN."""
    log_probs_KV = torch.tensor([[0.5, 0.5, 0, 0], [0, 0.5, 0, 0.5]]).log().numpy()
    prefixes = [PromptPrefix(np.zeros(1, np.int64), (0,)), PromptPrefix(np.zeros(0, np.int64), log_weight=-np.inf)]
    for mixer in (Contrast(alpha=0), Contrast(), AdaptiveContrast()):
        _, mixed_V = CheckedMixer(mixer).next_token(prefixes, log_probs_KV)
        assert mixed_V is not None
        assert np.isneginf(mixed_V[2:]).all()
        assert np.exp(mixed_V).sum() == pytest.approx(1, abs=1e-5)


@given(st.data())
def test_groups_are_reduced_alike_in_any_chunks(data: st.DataObject) -> None:
    """The logits of each target of each group, whatever is computed together."""
    lengths = data.draw(st.lists(st.integers(2, 9), min_size=1, max_size=4))
    sequences = [ScoringSequence(np.arange(length) % 5, np.arange(1, length)) for length in lengths]
    rng = np.random.default_rng(0)
    states_PX = torch.from_numpy(rng.normal(size=(sum(length - 1 for length in lengths), 5)).astype(np.float32))
    log_probs_PV = states_PX.log_softmax(-1).numpy()
    groups, expected = [], []
    for _ in range(data.draw(st.integers(1, 4))):
        chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=3))
        targets = data.draw(st.integers(1, min(lengths[one] for one in chosen) - 1))
        firsts = [lengths[one] - 1 - targets for one in chosen]
        groups.append(
            TargetGroup(
                np.array(chosen),
                np.array(firsts),
                targets,
                lambda log_probs_KTV, _: log_probs_KTV.amax((0, 2))[:, None],
            )
        )
        begins = [sum(lengths[:one]) - one + first for one, first in zip(chosen, firsts, strict=True)]
        ids = sequences[chosen[0]].tokens_N[1 + firsts[0] :]
        expected.append(
            [
                [
                    *(log_probs_PV[begin + t, ids[t]] for begin in begins),
                    max(log_probs_PV[begin + t].max() for begin in begins),
                ]
                for t in range(targets)
            ]
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouped, "LOGITS_PER_CHUNK", 5 * data.draw(st.integers(0, 12)))
        found = grouped.reduced(states_PX, sequences, groups, lambda states: states, 5)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_a_model_whose_output_layer_is_not_called_and_copies_of_a_model(tiny_folders: dict[str, Path]) -> None:
    model = load_transformers_model(str(tiny_folders["gpt2"]))
    prepared = prepare_text(TEXT, model.tokenizer, PLANS["sliding"], limit_tokens=40)
    hits = some_hits(prepared, 3)
    expected = read(model, prepared, hits, Contrast()).log_probs_T
    folder = tiny_folders["gpt2"]
    loaded = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for _ in range(2)]
    copies = LocalLanguageModel("copies", loaded[0], model.tokenizer, loaded[1:])
    np.testing.assert_allclose(read(copies, prepared, hits, Contrast()).log_probs_T, expected, atol=2e-5)
    for one in copies.copies:
        one.model.get_output_embeddings()._forward_pre_hooks.clear()
    np.testing.assert_allclose(read(copies, prepared, hits, Contrast()).log_probs_T, expected, atol=2e-5)


def test_the_plain_prediction_is_read_once_and_a_killed_run_goes_on(model: LocalLanguageModel, tmp_path: Path) -> None:
    plan = PLANS["sliding"]
    source = FromRetriever(Found(), PASSAGES, config={})
    readers = [Ensemble(documents=2, mixer=mixer) for mixer in (Contrast(), EntropyWeights(), Backoff())]
    with Store(tmp_path / "scores", "scores") as store:
        for reader in readers:
            scorer = Scorer(model).with_store(store)
            first = evaluate_text(TEXT, scorer, plan, source=source, reader=reader, limit_tokens=50, baseline=True)
            contrasted = scorer.scored
            alone = Scorer(model)
            plain = evaluate_text(TEXT, alone, plan, limit_tokens=50)
            similar = Scorer(model)
            evaluate_text(
                TEXT, similar, plan, source=source, reader=Ensemble(documents=2), limit_tokens=50, baseline=True
            )
            assert contrasted == similar.scored
            assert first.baseline is not None
            np.testing.assert_allclose(first.baseline.scored.log_probs_T, plain.reading.scored.log_probs_T, atol=2e-5)
            again = Scorer(Unread(model)).with_store(store)
            second = evaluate_text(TEXT, again, plan, source=source, reader=reader, limit_tokens=50, baseline=True)
            np.testing.assert_array_equal(second.reading.scored.log_probs_T, first.reading.scored.log_probs_T)
            assert second.baseline is not None
            np.testing.assert_array_equal(second.baseline.scored.log_probs_T, first.baseline.scored.log_probs_T)


class Found:
    """Finds passages 0 and 3, whatever the query."""

    config: dict[str, Any] = {"retriever": "found"}  # noqa: RUF012

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        return Hits.from_pairs([[(0, 1.0), (3, 0.5)][:k] for _ in queries])


class Unread(Whole):
    """A model that must not be read again."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.merges_prefixes = model.merges_prefixes
        self.score = self.distributions = self.fail

    def fail(self, _: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        raise AssertionError("read")


def test_gains_stand_without_shares(model: LocalLanguageModel) -> None:
    plan = PLANS["sliding"]
    source = FromRetriever(Found(), PASSAGES, config={})
    reader = Ensemble(documents=2, mixer=Contrast())
    evaluation = evaluate_text(TEXT, model, plan, source=source, reader=reader, limit_tokens=50, baseline=True)
    traced: TracedText = evaluation.traced
    without_T = ~traced.provenance.shared_T
    assert without_T.any()
    assert (evaluation.reading.scored.passages_T[without_T] == NO_PASSAGE).all()
    gain = total_gain(traced.provenance, traced.gain_T)
    assert gain.nats == pytest.approx(traced.gain_T.sum())
    assert gain.unattributed == pytest.approx(gain.nats)
    assert contributions(traced.provenance, traced.gain_T) == []


@pytest.mark.parametrize("name", MIXERS)
def test_generation_equals_the_plain_loop(name: str) -> None:
    passages = passages_of("c d c d", "e f e f e", "a b b", "g h a")
    source = FromRetriever(SharedWordsRetriever(passages), passages, config={})
    options = GenerationOptions(
        new_tokens=9, stride=2, query_tokens=2, document_tokens=4, max_length=16, top_logprobs=2
    )
    model, mixer = CountingModel(WordTokenizer("abcdefgh"), vocabulary=9), MIXERS[name]
    tokens = model.tokenizer.encode("c e b a f")
    (fast,) = written(TokenWriter(model, options, source, reader=Ensemble(documents=3, mixer=mixer)), tokens)
    documents = PassageDocuments(passages, model.tokenizer, 4)
    text = tokens.tolist()
    found: list[tuple[int, float]] = []
    for step, token in enumerate(fast):
        if step % 2 == 0:
            found = source.retriever.retrieve([model.tokenizer.decode(np.array(text[-2:]))], 3).of(0)
        *log_probs, plain = (
            model.next_log_probs_V(np.array(mixers.trimmed(documents[number].tolist(), text, 16))).astype(float)
            for number in [*(number for number, _ in found), NO_PASSAGE]
        )
        mixed, weights = plainly(mixer, ensemble.weights([score for _, score in found]), log_probs, plain)
        assert mixed[token.token] == pytest.approx(max(mixed), abs=1e-5)
        assert token.log_prob == pytest.approx(mixed[token.token], abs=1e-5)
        assert np.isnan(token.posteriors_K).all() == (weights is None)
        assert (token.passage == NO_PASSAGE) or weights is not None
        text.append(token.token)
    assert len(fast) == 9


class Own:
    """A mixer that gives what it is told to give."""

    config = {"mixer": "own"}  # noqa: RUF012
    needs = MixerNeeds(distributions=True)

    def __init__(self, made: Callable[[Predictions], Any]) -> None:
        self.made = made

    def log_probs(self, given: Predictions) -> Any:
        return self.made(given)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda given: given.log_probs_KTV.sum(0), "probabilities that sum to"),
        (lambda given: given.average_TV * float("nan"), "probabilities that sum to nan, not 1"),
        (lambda given: given.log_probs_KTV[0, :, :1], "Tensor that is not a tensor of shape"),
    ],
)
def test_what_is_no_distribution_is_an_error(model: LocalLanguageModel, made: Any, message: str) -> None:
    prepared = prepare_text(TEXT, model.tokenizer, PLANS["sliding"], limit_tokens=30)
    with pytest.raises(MixerError, match=f"the mixer Own gives {message}"):
        read(model, prepared, some_hits(prepared, 3), Own(made))
    source = FromRetriever(Found(), PASSAGES, config={})
    options = GenerationOptions(new_tokens=2, document_tokens=10)
    with pytest.raises(MixerError, match=f"the mixer Own gives {message}"):
        list(generate("What", model, options, source, reader=Ensemble(documents=2, mixer=Own(made))))


class Both:
    """Needs evidence and distributions."""

    config = {"mixer": "both"}  # noqa: RUF012
    needs = MixerNeeds(evidence=2, distributions=True)

    def log_weights(self, given: Predictions) -> Any:
        raise AssertionError


class Neither:
    """Gives nothing."""

    config = {"mixer": "neither"}  # noqa: RUF012


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Contrast(alpha=-0.1), "`alpha` must be at least 0 and at most 100, not -0.1"),
        (lambda: AdaptiveContrast(floor=-1), "`floor` must be at least 0"),
        (lambda: Backoff(margin=float("nan")), "`margin` must be"),
        (lambda: EntropyWeights(temperature=0), "`temperature` must be at least 0.001"),
        (
            lambda: Ensemble(documents=1, mixer=EntropyWeights()),
            "EntropyWeights weighs several passages: set `documents`",
        ),
        (lambda: Ensemble(mixer=Both()), "Both needs more than one of evidence, summaries and distributions"),
        (lambda: Ensemble(mixer=Neither()), "Neither has neither `log_weights`, nor `log_probs`"),  # type: ignore[arg-type]
        (lambda: MixerOptions(mixer="entropies"), "`mixer` must be one of similarity"),  # type: ignore[arg-type]
    ],
)
def test_options_that_make_no_sense(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize("mixer", [Contrast(), EntropyWeights()])
def test_models_that_give_no_distributions(mixer: Any) -> None:
    passages = passages_of("a b", "b a")
    source = FromRetriever(SharedWordsRetriever(passages), passages, config={})
    model: Any = CountingModel(WordTokenizer("ab"))
    reader = Ensemble(documents=2, mixer=mixer)
    plan = PlanOptions(stride=2, query_tokens=2, document_tokens=4, max_length=30)
    with pytest.raises(UsageError, match="counting gives the log-probabilities of given tokens alone, and the mixer"):
        evaluate_text("a b a b a b", model, plan, source=source, reader=reader)
    model.tier = "top_k"
    with pytest.raises(UsageError, match="counting gives its top next tokens alone, and the mixer"):
        next(generate("a b", model, GenerationOptions(document_tokens=4), source, reader=reader))
    with pytest.raises(
        UsageError, match="looks at all that is predicted for each token: choose another mixer for answers"
    ):
        CheckedMixer(mixer).require_log_probs_alone("answers")

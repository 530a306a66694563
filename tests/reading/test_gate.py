"""Gates: what they see, what they open, what `ralm eval` and `ralm sweep` save with them, and how they are fitted."""

import json
from pathlib import Path

import numpy as np
import pytest

from ralm.errors import DamagedFolderError, UsageError
from ralm.evaluation.perplexity import evaluate_text
from ralm.lm.registry import ModelOptions, load_language_model
from ralm.lm.scoring import Scorer
from ralm.protocols import WritingModel
from ralm.reading.gate import (
    GATE_KIND,
    ConfidenceGate,
    Gate,
    GatedSource,
    LearnedGate,
    OpenedGate,
    open_gate,
    plain_features,
)
from ralm.reading.generate import generate_many
from ralm.reading.plan import PlanOptions
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from ralm.storage.manifest import write_manifest
from ralm.training.gate import fit_gate, train_gate
from ralm.training.options import GateOptions
from tests.cli.program import MODEL_LENGTH, TEXT, done, failed, printed, ralm, write_rows, write_stories
from tests.fakes import CountingModel, WordTokenizer

ALWAYS, NEVER = ConfidenceGate(1.0), ConfidenceGate(0.0)
PLAN = PlanOptions(stride=4, max_length=64, document_tokens=24)


@pytest.fixture(scope="module")
def model() -> WritingModel:
    return load_language_model("ralm-tiny", ModelOptions(dtype="float32"))


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_stories(tmp_path_factory.mktemp("gate"))
    done("index", folder / "corpus.jsonl", "--out", folder / "index")
    return folder


def test_features_are_those_of_the_next_token_and_of_the_last_ones(model: WritingModel) -> None:
    tokens = model.tokenizer.encode(TEXT)[:50]
    [found] = plain_features(np.zeros(0, dtype=np.int64), [tokens], Scorer(model))
    given = model.continuations().next_tokens([tokens])
    log_probs_V = given.log_probs_BC[0] if given.tokens_BC is None else np.zeros(0)
    assert found[0] == pytest.approx(-(np.exp(log_probs_V) * log_probs_V).sum(), abs=1e-3)
    assert found[1] == pytest.approx(log_probs_V.max(), abs=1e-4)
    before = [
        model.continuations().next_tokens([tokens[:place]]).log_probs_BC[0][tokens[place]] for place in range(18, 50)
    ]
    assert found[2] == pytest.approx(-np.mean(before), abs=1e-3)


def test_features_do_not_depend_on_what_follows(model: WritingModel, stories: Path) -> None:
    """Two texts that differ after a stride's beginning open the same gates up to there."""
    opened = []
    for ending in (" The sea is calm.", " Bread and wool."):
        source = GatedSource(FromRetriever.of_index(stories / "index"), ConfidenceGate(0.5), model)
        read = evaluate_text(TEXT + ending, model, PLAN, source=source).reading.scored
        opened.append(read.passages_T[:68].tolist())
    assert opened[0] == opened[1]
    assert len({*opened[0]}) > 1


def test_gates_that_open_always_or_never_change_nothing(model: WritingModel, stories: Path) -> None:
    source = FromRetriever.of_index(stories / "index")
    always, never = (GatedSource(source, ConfidenceGate(threshold), model) for threshold in (1.0, 0.0))
    plain, every = (evaluate_text(TEXT, model, PLAN, source=one).reading.scored for one in (None, source))
    read, unread = (evaluate_text(TEXT, model, PLAN, source=one).reading.scored for one in (always, never))
    assert np.array_equal(read.log_probs_T, every.log_probs_T)
    assert np.allclose(unread.log_probs_T, plain.log_probs_T, atol=1e-5)
    assert (always.opened.saved["retrievals_saved"], never.opened.saved["retrievals_saved"]) == (0, 1)
    assert always.config != never.config


def test_a_gate_that_sees_hits_saves_readings_alone(model: WritingModel, stories: Path) -> None:
    by_score = LearnedGate(bias=0.0, weights=(0, 0, 0, 1, 0), threshold=2.0)
    gated = GatedSource(FromRetriever.of_index(stories / "index"), by_score, model)
    evaluate_text(TEXT, model, PLAN, source=gated)
    hits, _ = FromRetriever.of_index(stories / "index").find(
        evaluate_text(TEXT, model, PLAN).prepared, model.tokenizer, 1
    )
    assert gated.opened.counts.read == int((hits.scores_QK[:, 0] > 2.0).sum())
    assert 0 < gated.opened.counts.read < gated.opened.counts.retrieved == gated.opened.counts.strides


def test_the_program_says_what_a_gate_saved(stories: Path, tmp_path: Path) -> None:
    asked = ("eval", stories / "text.txt", "--lm", "ralm-tiny", "--index", stories / "index", *MODEL_LENGTH)
    shown = printed(*asked, "--gate", "confidence:0.4", "--out", tmp_path / "run")
    assert 0 < shown["gate"]["retrievals_saved"] < 1
    assert shown["config"]["passages"]["gate"] == {"gate": "confidence", "threshold": 0.4}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["config"] == shown["config"]
    again = done(*asked, "--gate", "confidence:0.4").out
    assert f"The gate saved {shown['gate']['retrievals_saved']:.1%} of the retrievals" in again
    values = printed("sweep", *asked[1:], "--over", "gate", "--values", "confidence:0,confidence:0.4,confidence:1")
    by_value = {point["gate"]: point["token_perplexity"] for point in values["points"]}
    assert by_value["confidence:0.4"] == pytest.approx(shown["token_perplexity"], rel=1e-5)
    assert by_value["confidence:0"] == pytest.approx(values["points"][0]["none_token_perplexity"], rel=1e-5)


def test_generation_reads_passages_where_a_gate_opens(stories: Path, model: WritingModel) -> None:
    source, options = FromRetriever.of_index(stories / "index"), GenerationOptions(new_tokens=12, stride=4)

    def written(gate: Gate | None, source: FromRetriever | None = source) -> list[int]:
        opened = None if gate is None else OpenedGate(gate, model)
        pieces = generate_many([TEXT[:100], TEXT[:60]], model, options, source, gate=opened)
        if opened is not None:
            found = [token.token for _, piece in pieces for token in piece.tokens]
            assert opened.counts.strides == 6
            assert opened.counts.retrieved == opened.counts.read == (0 if gate is NEVER else 6)
            return found
        return [token.token for _, piece in pieces for token in piece.tokens]

    assert written(ALWAYS) == written(None)
    assert written(NEVER) == written(None, None)
    by_score = LearnedGate(bias=0.0, weights=(0, 0, 0, 1, 0), threshold=-1.0)
    assert written(by_score) == written(None)  # a hit has a score above 0, and nothing reads as nothing


def test_the_program_generates_with_a_gate(stories: Path) -> None:
    asked = ("generate", "The dog keeps the", "--lm", "ralm-tiny", "--index", stories / "index", "--new-tokens", 8)
    shown = done(*asked, "--gate", "confidence:0")
    assert "the gate saved 100.0% of the retrievals" in shown.err
    assert "passage" in done(*asked).out.partition("<-")[2].partition("(")[2]
    failed(ralm(*asked[:4], "--new-tokens", 8, "--gate", "confidence"), 2, "--gate has no effect without --index")


def test_questions_are_read_with_passages_where_a_gate_opens(stories: Path, tmp_path: Path) -> None:
    rows = [{"question": one, "answer": ["the whales"]} for one in ("who sings in the deep sea", "who keeps the sheep")]
    questions = write_rows(tmp_path / "questions.jsonl", rows)
    asked = ("--lm", "ralm-tiny", "--index", stories / "index", "--new-tokens", 3)
    every, always, never = (
        printed("qa", questions, *asked, *more)
        for more in ((), ("--gate", "confidence:1"), ("--gate", "confidence:0", "--out", tmp_path / "run"))
    )
    closed = printed("qa", questions, "--lm", "ralm-tiny", "--new-tokens", 3)
    assert always["gate"]["readings_saved"] == 0
    assert always["gold_log_prob"] == every["gold_log_prob"]
    assert never["gate"] == {"strides": 2, "retrievals_saved": 1, "readings_saved": 1}
    assert never["gold_log_prob"] == pytest.approx(closed["gold_log_prob"])
    assert never["config"]["passages"]["gate"] == {"gate": "confidence", "threshold": 0}
    shown = printed("qa", questions, *asked, "--gate", "confidence:1", "--demonstrations", questions, "--shots", 1)
    assert shown["gate"]["strides"] == 2  # the demonstration is none of them
    swept = printed("qa", questions, *asked, "--over", "gate", "--values", "confidence:0,confidence:1")
    assert [point["gold_log_prob"] for point in swept["points"]] == [never["gold_log_prob"], every["gold_log_prob"]]
    answer = ("ask", "who sings in the deep sea", *asked, "--json")
    given = [json.loads(done(*answer, *more).out) for more in ((), ("--gate", "confidence:1"))]
    assert given[0] == given[1]
    assert "sources" not in json.loads(done(*answer, "--gate", "confidence:0").out)
    failed(ralm("ask", "who?", "--lm", "ralm-tiny", "--gate", "confidence"), 2, "--gate has no effect without --index")


def test_what_is_no_gate_is_rejected(stories: Path, tmp_path: Path) -> None:
    asked = ("eval", stories / "text.txt", "--lm", "ralm-tiny")
    index = ("--index", stories / "index", *MODEL_LENGTH)
    failed(ralm(*asked, *index, "--gate", "confidence:x"), 2, "'x' is no number from 0 to 1")
    failed(ralm(*asked, *index, "--gate", "confidence:1.5"), 2, "threshold")
    failed(ralm(*asked, *index, "--gate", stories / "index"), 1, "not a ralm gate")
    failed(ralm(*asked, "--gate", "confidence"), 2, "--gate has no effect without --index or --retrieved")
    damaged = tmp_path / "gate"
    damaged.mkdir()
    write_manifest(damaged, kind=GATE_KIND, settings={"gate": {"bias": 0}}, counts={})
    with pytest.raises(DamagedFolderError, match="does not record the weights"):
        open_gate(str(damaged))
    lists_none = CountingModel(WordTokenizer())
    with pytest.raises(UsageError, match="a `gate` needs whole distributions"):
        GatedSource(FromRetriever.of_index(stories / "index"), ConfidenceGate(), lists_none)


def test_a_fitted_gate_opens_where_passages_help() -> None:
    draws = np.random.default_rng(0)
    features_EF = draws.normal(size=(2000, 3)) * [1, 0.5, 2] + [3, -1, 2]
    gains_E = np.where(features_EF[:, 0] > 3.5, 1.0, -0.3) + draws.normal(scale=0.2, size=2000)
    gate = fit_gate(features_EF, gains_E, np.arange(2000) // 20)
    opens_E = gate.opens(features_EF)
    assert gains_E[opens_E].sum() > 0.9 * np.maximum(gains_E, 0).sum()
    assert (opens_E == (features_EF[:, 0] > 3.5)).mean() > 0.9
    assert gate.weights[0] > 10 * abs(gate.weights[2])


@pytest.mark.parametrize("hits", [False, True])
def test_a_gate_is_trained_tested_and_read(stories: Path, tmp_path: Path, model: WritingModel, *, hits: bool) -> None:
    made = ("--index", stories / "index", "--lm", "ralm-tiny", "--dtype", "float32", "--no-exclude")
    lengths = ("--prefix-tokens", 8, "--sequence-tokens", 24, "--query-tokens", 8, "--document-tokens", 24)
    done("signals", stories / "corpus.jsonl", *made, *lengths, "--out", tmp_path / "signals")
    asked = (
        "train",
        "gate",
        tmp_path / "signals",
        "--lm",
        "ralm-tiny",
        "--dtype",
        "float32",
        "--out",
        tmp_path / "gate",
    )
    shown = printed(*asked, *(["--hits"] if hits else []))
    assert len(shown["gate"]["weights"]) == (5 if hits else 3)
    assert shown["oracle"]["gain"] >= max(shown["always"]["gain"], shown["gated"]["gain"])
    assert shown["random"]["gain"] == pytest.approx(shown["always"]["gain"] * (1 - shown["saved"]))
    assert shown["loss"]["gain"] == pytest.approx(shown["always"]["gain"] - shown["gated"]["gain"])
    gate = open_gate(str(tmp_path / "gate"))
    assert gate.uses_hits == hits
    assert gate.config == {"gate": "learned", **shown["gate"]}
    again = ("--index", stories / "index", *MODEL_LENGTH, "--dtype", "float32", "--gate", tmp_path / "gate")
    assert "gate" in printed("eval", stories / "text.txt", "--lm", "ralm-tiny", *again)
    failed(ralm(*asked), 1, "already exists")
    other = CountingModel(WordTokenizer(), name="other", config={"name": "other", "weights": "others"})
    with pytest.raises(UsageError, match="was measured with another language model than other"):
        train_gate(tmp_path / "signals", tmp_path / "new", other, GateOptions())

"""Signals of questions with gold answers: against `ralm qa`, what learns from them, and what is rejected."""

import json
from pathlib import Path

import numpy as np
import pytest

import ralm as library
from ralm.answering.sources import QuestionRetriever, RerankedPassages
from ralm.errors import UsageError
from ralm.lm.registry import ModelOptions, load_language_model
from ralm.protocols import WritingModel
from ralm.reading.ensemble import Ensemble
from ralm.reading.mixers import LearnedWeights
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from ralm.reranking.lexical import Lexical, LexicalWeights
from ralm.retrieval.dense.encoder import SentenceEncoder
from ralm.retrieval.dense.options import EncoderOptions
from ralm.training.lexical import features_of
from ralm.training.mixer import read_examples
from ralm.training.options import CandidateOptions
from ralm.training.signals import Signals
from tests.cli.program import done, failed, printed, ralm, write_rows
from tests.tiny_encoders import save_tiny_bert

ANIMALS = ("dog", "whale", "sheep", "horse", "owl", "fox")
PLACES = ("hill", "sea", "meadow", "stable", "wood", "garden")
NAMES = ("Anna", "Bert", "Carl", "Dora")
K = 3


@pytest.fixture(scope="module")
def model() -> WritingModel:
    return load_language_model("ralm-tiny", ModelOptions(dtype="float32"))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Passages in which an animal lives at a place, an index of them with vectors, and questions."""
    folder = tmp_path_factory.mktemp("questions")
    texts = [
        f"{NAMES[(n + place) % 4]} has a {one} which lives in the {other} by day" + ":" * (n % 2) + " or night" * place
        for n, one in enumerate(ANIMALS)
        for place, other in enumerate(PLACES)
    ]
    passages = [library.Passage(n, f"p{n}", f"Story {n}", text) for n, text in enumerate(texts)]
    encoder = SentenceEncoder(EncoderOptions(encoder=str(save_tiny_bert(folder / "bert")), normalize=True))
    library.build_index(passages, folder / "index", encoder=encoder)
    rows = [
        {"question": f"Where does the {one} of {other} live", "answer": [f"in the {PLACES[n]}" + " by night" * (n % 2)]}
        for n, one in enumerate(ANIMALS)
        for other in NAMES
    ]
    write_rows(folder / "questions.jsonl", [*rows, {"question": "Who asks", "answer": []}])
    return folder


@pytest.fixture(scope="module")
def signals(work: Path, model: WritingModel) -> Signals:
    return library.make_question_signals(
        work / "signals",
        library.read_questions(work / "questions.jsonl"),
        work / "index",
        model,
        library.open_prompt("in-context-ralm"),
        CandidateOptions(candidates=K),
    )


def found_by_bm25(work: Path) -> FromRetriever:
    index = library.open_index(work / "index")
    return FromRetriever(library.open_retriever(index), index.passages)


def test_they_are_the_log_probabilities_of_qa(work: Path, signals: Signals, model: WritingModel) -> None:
    """After each passage, in its place alone, and for the closed book; a question without answers is left out."""
    questions = library.read_questions(work / "questions.jsonl")[:-1]
    assert [*signals.documents_E] == [one.id for one in questions]
    assert signals.texts("query").to_pylist() == signals.texts("prefix").to_pylist() == [one.text for one in questions]
    assert len({*signals.tokens_E.tolist()}) > 1, "answers differ in length"
    passages, prompt = library.open_index(work / "index").passages, library.open_prompt("in-context-ralm")
    for place in range(K):
        file = work / f"retrieved-{place}.json"
        chosen = [passages[number] for number in signals.passages_EK[:, place].tolist()]
        rows = [
            {"id": one.id, "question": one.text, "answers": one.answers,
             "ctxs": [{"title": passage.title, "text": passage.text}]}
            for one, passage in zip(questions, chosen, strict=True)
        ]  # fmt: skip
        file.write_text(json.dumps(rows))
        source = library.GivenPassages.read(file)
        found = library.evaluate_questions(questions, model, prompt, source=source, baseline=True)
        read = [row.judged.gold_log_prob for row in found.rows]
        np.testing.assert_allclose(signals.log_probs_EK[:, place], np.array(read, dtype=float), rtol=1e-4)
        closed = [row.closed and row.closed.gold_log_prob for row in found.rows]
        np.testing.assert_allclose(signals.baseline_E, np.array(closed, dtype=float), rtol=1e-4)


def test_a_mixer_learns_from_what_it_reads_in_qa(work: Path, signals: Signals, model: WritingModel) -> None:
    """The likelihood of the answers, also of different lengths, is the one that `ralm qa` has with the mixer."""
    weights = LearnedWeights(temperature=2.0, rank=-0.3, overlap=0.5, none=1.5, eta=0.4, decay=5.0)
    questions = library.read_questions(work / "questions.jsonl")[:-1]
    examples = read_examples(signals, np.arange(len(signals)), K)
    assert examples.features_EKF[:, :-1, 2].any(), "prompts share their last tokens with passages"
    source = QuestionRetriever(found_by_bm25(work))
    found = library.evaluate_questions(
        questions,
        model,
        library.open_prompt("in-context-ralm"),
        source=source,
        reader=Ensemble(documents=K, mixer=weights),
    )
    read = np.array([row.judged.gold_log_prob for row in found.rows], dtype=float)
    np.testing.assert_allclose(examples.log_likelihood(weights).sum(axis=1), read, rtol=1e-4)


def test_a_reranker_sees_in_qa_what_it_was_fitted_to(work: Path, signals: Signals, model: WritingModel) -> None:
    """With any weights, `ralm qa` reads the passage that the features of the signals choose."""
    index = library.open_index(work / "index")
    weights = LexicalWeights(score=0.3, rank=0.4, overlap=1.0, log_overlap=-0.7, near=0.5)
    features_EKF = features_of(signals, index, np.arange(len(signals)), likelihood=False)
    chosen_E = weights.scores(features_EKF).argmax(axis=1)
    assert len({*chosen_E.tolist()}) > 1
    reranker = Lexical(candidates=K, weights=weights)
    source = RerankedPassages(found_by_bm25(work), reranker, model, GenerationOptions())
    hits, _ = source.find(library.read_questions(work / "questions.jsonl")[:-1], 1)
    np.testing.assert_array_equal(hits.numbers_QK[:, 0], signals.passages_EK[np.arange(len(chosen_E)), chosen_E])


def test_end_to_end(work: Path, tmp_path: Path) -> None:
    """From the command to answers with weights of each kind that learn from it."""
    questions, index = work / "questions.jsonl", work / "index"
    asked = ["--questions", questions, "--index", index, "--lm", "ralm-tiny", "--prompt", "in-context-ralm"]
    shown = done("signals", *asked, "--candidates", K, "--out", tmp_path / "bm25").out
    assert "24 examples with passages to choose from" in shown
    assert "no attainable gain" in shown
    made = library.open_signals(tmp_path / "bm25")
    config = made.config
    assert (config["examples"]["gold"], config["examples"]["prompt"]["name"]) == ("first", "in-context-ralm")
    assert config["text"]["count"] == 24
    worth = printed("signals", *asked, "--candidates", K, "--out", tmp_path / "bm25", "--force")
    assert worth["halves"] is None
    assert worth["first"]["low"] <= worth["first"]["gain"] <= worth["first"]["high"]
    signals = tmp_path / "bm25"
    done("check", signals)
    done("train", "reranker", signals, "--out", tmp_path / "words")
    done("train", "mixer", signals, "--documents", K, "--out", tmp_path / "mixer")
    done("train", "gate", signals, "--lm", "ralm-tiny", "--out", tmp_path / "gate")
    done("signals", *asked, "--candidates", K, "--retriever", "dense", "--out", tmp_path / "dense")
    done("train", "retriever", tmp_path / "dense", "--steps", 2, "--batch", 4, "--out", tmp_path / "encoder")
    answered = ["qa", questions, *asked[2:], "--limit", 3, "--new-tokens", 2]
    read = printed(*answered, "--rerank", "lexical", "--lexical-weights", tmp_path / "words", "--candidates", K)
    assert read["config"]["passages"]["reranker"] == "lexical"
    mixed = ["--reader", "ensemble", "--documents", K, "--mixer", "learned", "--mixer-weights", tmp_path / "mixer"]
    done(*answered, *mixed)
    done(*answered, "--gate", tmp_path / "gate")
    done(*answered, "--retriever", "dense", "--query-encoder", tmp_path / "encoder")


def test_what_is_rejected(work: Path, tmp_path: Path, signals: Signals) -> None:
    out, index, folder = tmp_path / "out", work / "index", work / "signals"
    write_rows(tmp_path / "without.jsonl", [{"question": "Who asks", "answer": []}])
    write_rows(tmp_path / "corpus.jsonl", [{"id": "one", "text": "The dog lives in the hill."}])
    given = ["--index", index, "--lm", "ralm-tiny", "--out", out]
    questions = ["--questions", work / "questions.jsonl"]
    one_of_them = "signals are of training text or of --questions: give one of them"
    wrong: list[tuple[list[object], str]] = [
        (["signals", *given], one_of_them),
        (["signals", tmp_path / "corpus.jsonl", *questions, *given], one_of_them),
        (["signals", "--questions", tmp_path / "without.jsonl", *given], "none of the 1 questions has a gold answer"),
        (["signals", *questions, *given, "--per-sequence", 2], "--per-sequence has no effect without training text"),
        (["signals", *questions, *given, "--no-exclude"], "--no-exclude has no effect without training text"),
        (["signals", tmp_path / "corpus.jsonl", *given, "--prompt", "chat"], "no effect without --questions"),
        (["signals", *questions, *given, "--prompt", "chat"], "has no chat template"),
        (["train", "reranker", folder, "--likelihood", "--out", out], "the end of the prompts of questions: leave it"),
    ]
    for arguments, message in wrong:
        answer = ralm(*arguments)
        failed(answer, answer.status, message)
        assert answer.status in (1, 2)
        assert not out.exists()
    done("index", tmp_path / "corpus.jsonl", "--out", tmp_path / "other")
    answer = ralm("train", "reranker", folder, "--index", tmp_path / "other", "--out", out)
    failed(answer, 2, "are of another index")
    done("signals", *questions, *given, "--candidates", K, "--prompt", "replug")
    with pytest.raises(
        UsageError, match=r"measured with different settings \(examples.prompt.name in-context-ralm and replug"
    ):
        library.open_signals(folder, out)
    done("signals", *questions, *given, "--candidates", K, "--no-evidence", "--force")
    answer = ralm("train", "mixer", out, "--documents", K, "--out", tmp_path / "mixer")
    failed(answer, 2, "was measured without `evidence`")

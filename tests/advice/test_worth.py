"""`ralm worth`: verdicts on planted corpora, what it is measured on, its page, and what is rejected."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks import worth
from ralm.advice.held_out import WorthOptions, held_out_documents, held_out_questions, held_out_texts
from ralm.advice.measure import FIRST, RANDOM, Meter
from ralm.advice.sequential import SequentialGain
from ralm.advice.verdict import Worth, judge_corpus, open_meter
from ralm.answering.questions import Question
from ralm.corpus.splitting import make_passages
from ralm.errors import BudgetError, UsageError
from ralm.lm.registry import ModelOptions, load_language_model
from ralm.protocols import WritingModel
from ralm.records import NO_PASSAGE, Document, Request
from ralm.retrieval.build import build_index
from ralm.retrieval.index import Index, open_index
from tests.campaign import sampled
from tests.cli.program import done, failed, printed, ralm, write_rows
from tests.fakes import CountingModel, WordTokenizer

SHORT = ("--units", 16, "--strides", 2, "--prefix-tokens", 32, "--candidates", 2, "--ensemble", 2, "--budget", 0)
OPTIONS = WorthOptions(most=16, strides=2, prefix_tokens=32, candidates=2, documents=2, budget=0)


def document(number: int, words: int = 130) -> str:
    """A text of its own, most of it the same 40 words in another order."""
    draws = np.random.default_rng(number)
    known = [f"term{word}" for word in range(40)]
    return " ".join(known[draws.integers(40)] if draws.random() < 0.7 else f"name{number}" for _ in range(words))


def indexed(folder: Path, texts: Sequence[str]) -> Index:
    documents = [Document(f"d{number}", "", text, metadata={"part": number % 2}) for number, text in enumerate(texts)]
    build_index(make_passages(documents), folder)
    return open_index(folder)


@pytest.fixture(scope="module")
def model() -> WritingModel:
    return load_language_model("ralm-tiny", ModelOptions(dtype="float32"))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """20 documents, of which the last one is a copy of the first."""
    texts = [document(number) for number in range(19)]
    return indexed(tmp_path_factory.mktemp("worth") / "index", [*texts, texts[0]])


@pytest.mark.parametrize("case", sampled([(kind, seed) for kind in worth.PLANTED for seed in range(3)], ("gold", 0)))
def test_planted_corpora_get_the_right_verdict(model: WritingModel, case: tuple[str, int]) -> None:
    kind, seed = case
    found = worth.planted(model, kind, seed, most=16 if kind == "gold" else worth.UNITS)
    _, right = worth.PLANTED[kind]
    fine = {right, "open"} if right == "no difference" else {right}
    if kind == "copies" and (found.near_duplicates or 0) > 0.9:
        fine.add("helps")  # documents of Python help others a little
    assert found.verdict in fine
    assert right in ("helps", "near duplicates") or found.gain.low <= 0


def test_a_gain_is_that_of_a_plain_loop(model: WritingModel, index: Index) -> None:
    """The first passage that is of another document and no copy, read before the prefix."""
    meter = open_meter(index, model, OPTIONS)
    held_out = held_out_documents(index, model.tokenizer, OPTIONS)
    units = [unit for unit in held_out.units if unit is not None][:3]
    for unit, found in zip(units, meter.measure(units, 1), strict=True):
        gain, tokens = 0.0, 0
        for example, query in zip(unit.examples, unit.queries, strict=True):
            shown = index.bm25.retrieve([query], len(index.passages)).of(0)
            allowed = [
                number
                for number, _ in shown
                if number != NO_PASSAGE
                and index.passages[number].document_id != unit.name
                and not unit.overlap.overlap(index.passages[number].contents)
            ]
            gain += log_prob(meter, allowed[0], example.prefix, example.continuation)
            gain -= log_prob(meter, NO_PASSAGE, example.prefix, example.continuation)
            tokens += len(example.continuation)
        assert found.gains[FIRST][0] == pytest.approx(gain, abs=1e-3)
        assert found.gains[FIRST][1] == tokens


def log_prob(meter: Meter, passage: int, prefix: np.ndarray, continuation: np.ndarray) -> float:
    request = Request(document=meter.documents[passage], context=prefix, targets=continuation)
    return float(meter.scorer.log_probs([request])[0].sum())


def test_a_copy_is_a_near_duplicate_and_not_read(model: WritingModel, index: Index) -> None:
    found = judge_corpus(index, model, held_out_documents(index, model.tokenizer, OPTIONS), OPTIONS)
    assert found.standing_in in (1, 2)  # the document and its copy, as far as they are among 16 of 20
    assert sum(part.share for part in found.overlaps) == pytest.approx(1)
    assert found.with_duplicates.gain == pytest.approx(sum(part.gain for part in found.overlaps))
    assert {part.name for part in found.metadata["part"]} == {"0", "1"}
    assert sum(part.share for part in found.metadata["part"]) == pytest.approx(1)
    assert {"best of 2", "ensemble of 2", RANDOM} <= {*found.readings}


def test_no_passage_of_a_copy_is_read(tmp_path: Path, model: WritingModel) -> None:
    """Not even its last one, which is too short to share a run of 13 words."""
    texts = [document(number, 105) for number in range(17)]
    index = indexed(tmp_path / "index", [*texts, texts[0]])
    [unit] = [one for one in held_out_documents(index, model.tokenizer, OPTIONS).units if one and one.name == "d0"]
    meter = open_meter(index, model, OPTIONS)
    candidates = {number for read in meter._reads(unit, True) for number, _ in read.candidates}
    assert "d17" not in {index.passages[number].document_id for number in candidates}
    assert meter.measure([unit], 0)[0].hits[0].overlap == 1


def test_passages_that_give_nothing_make_no_difference(tmp_path: Path, model: WritingModel, index: Index) -> None:
    """Nothing is found, so every gain is exactly 0."""
    strange = indexed(
        tmp_path / "index", [" ".join(f"other{number}{word}" for word in range(60)) for number in range(20)]
    )
    texts = [Document(f"t{number}", "", document(number)) for number in range(16)]
    found = judge_corpus(strange, model, held_out_texts(texts, "text", model.tokenizer, OPTIONS), OPTIONS)
    assert (found.verdict, found.gain.gain, found.gain.units) == ("no difference", 0, 16)
    assert found.sentence.startswith("The corpus makes no difference above 0.01")


def test_passages_of_other_words_harm_a_model_that_counts(tmp_path: Path) -> None:
    tokenizer = WordTokenizer()
    counting = CountingModel(tokenizer, vocabulary=4000, max_length=600)
    misleading = indexed(tmp_path / "index", [f"term{number} " + "elsewhere " * 90 for number in range(20)])
    texts = [Document(f"t{number}", "", document(number)) for number in range(16)]
    found = judge_corpus(misleading, counting, held_out_texts(texts, "text", tokenizer, OPTIONS), OPTIONS)
    assert found.verdict == "harms"
    assert found.sentence.startswith("The corpus harms: by ")


def test_questions_are_measured_by_their_gold_answers(tmp_path: Path, model: WritingModel) -> None:
    index = indexed(
        tmp_path / "index", [f"Capital of land{n}\nThe capital of land{n} is city{n}. " * 3 for n in range(20)]
    )
    questions = [Question(str(n), f"What is the capital of land{n}?", (f"city{n}",)) for n in range(16)]
    found = judge_corpus(index, model, held_out_questions(questions, "questions", model.tokenizer, OPTIONS), OPTIONS)
    assert (found.verdict, found.noun) == ("helps", "questions")
    with pytest.raises(UsageError, match="no gold answers"):
        held_out_questions([Question("1", "who?")], "questions", model.tokenizer, OPTIONS)


def test_an_open_verdict_says_how_much_more_would_decide() -> None:
    shown = {"noun": "documents", "verdict": "open", "needed": 700, "stopped": "budget"}
    found = object.__new__(Worth)
    for name, value in shown.items():
        object.__setattr__(found, name, value)
    gain = SequentialGain(gain=0.01, low=-0.02, high=0.04, units=32, spread=0.1)
    object.__setattr__(found, "gain", gain)
    assert found.sentence == (
        "No difference can be shown when the budget ended: -0.020 to +0.040 nats a token (32 documents); a gain of "
        "this size would need about 700 documents."
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    return write_rows(file, [{"id": f"d{number}", "text": document(number)} for number in range(20)])


def test_the_program_prints_a_screen(corpus: Path) -> None:
    asked = ("worth", corpus, "--lm", "ralm-tiny", *SHORT)
    shown = done(*asked).out
    assert len(shown.splitlines()) <= 24
    assert "nats a token (16 documents)" in shown
    assert printed(*asked)["corpus"] == str(corpus)


def test_a_text_that_stands_in_the_corpus_is_said_so(corpus: Path) -> None:
    shown = done("worth", corpus, "--lm", "ralm-tiny", "--text", corpus, *SHORT).out
    assert "Stand in the corpus" not in shown  # the ids say which documents are their own
    plain = corpus.with_name("text.txt")
    plain.write_text("\n\n".join(json.loads(line)["text"] for line in corpus.read_text().splitlines() * 2))
    shown = done("worth", corpus, "--lm", "ralm-tiny", "--text", plain, *SHORT).out
    assert "Stand in the corpus" in shown


def test_what_allows_no_verdict_is_rejected(corpus: Path, tmp_path: Path, index: Index, model: WritingModel) -> None:
    few = write_rows(tmp_path / "few.jsonl", [{"id": f"d{n}", "text": document(n)} for n in range(9)])
    asked = ("--lm", "ralm-tiny", *SHORT)
    failed(ralm("worth", few, *asked), 2, "has 9 documents that are long enough, too few for any verdict: it needs 16")
    short = write_rows(tmp_path / "short.jsonl", [{"id": f"d{n}", "text": "a few words"} for n in range(30)])
    failed(ralm("worth", short, *asked), 2, "has 0 documents that are long enough")
    both = ("--text", corpus, "--questions", corpus)
    failed(ralm("worth", corpus, *asked, *both), 2, "--text and --questions are two measures of a corpus")
    failed(ralm("worth", tmp_path / "none", *asked), 1, "none")
    failed(ralm("worth", corpus, "--lm", "ralm-tiny", "--ensemble", 20), 2, "more than the")
    small = CountingModel(WordTokenizer(), name="small", max_length=300)
    with pytest.raises(UsageError, match="do not fit together into the 300 that small can read"):
        open_meter(index, small, OPTIONS)
    writes = CountingModel(WordTokenizer(), tier="text", name="writes")
    held_out = held_out_documents(index, model.tokenizer, OPTIONS)
    with pytest.raises(UsageError, match="writes does not score given texts, so no gain can be measured"):
        judge_corpus(index, writes, held_out, OPTIONS)
    with pytest.raises(BudgetError, match="the budget ended before two documents were measured"):
        judge_corpus(index, model, held_out, WorthOptions(most=16, budget=1e-9))

"""Multiple choice: choices and their measures against plain loops, the folder, resuming, and the command."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from ralm.answering import multiple_choice
from ralm.answering.answers import Answer
from ralm.answering.evaluation import AnswerEvaluation, evaluate_choices
from ralm.answering.multiple_choice import letter_of
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import open_prompt
from ralm.answering.questions import ChoiceQuestion
from ralm.answering.run import run_questions
from ralm.errors import UsageError
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import WritingModel
from ralm.reading.mixture import UniformWeights
from ralm.reading.parts import Parts
from ralm.reading.readers import Concatenation, Ensemble
from ralm.reading.sources import FromRetriever
from ralm.reranking.lexical import ends_of, shared_words, spaced
from tests.answering.given import PASSAGES, Given, order_for
from tests.cli.program import done, failed, ralm
from tests.fakes import CountingModel, WordTokenizer

QUESTIONS = [
    ChoiceQuestion("a", "Who keeps the sheep?", ("the dog", "a whale", "the whole town by night"), 0, "sociology"),
    ChoiceQuestion("b", "Who sings?", ("sheep", "whales"), 1, "astronomy"),
    ChoiceQuestion("c", "What is sold?", ("the sea", "dogs", "wool", "bread"), 3, "astronomy"),
]
SHOWN = [
    ChoiceQuestion("d", "Who barks?", ("cats", "dogs"), 1, "sociology"),
    ChoiceQuestion("e", "Where are stars?", ("in the sky", "in the sea"), 0, "astronomy"),
    QUESTIONS[1],
]
LETTER = open_prompt("replug-choice")
READERS = [
    Parts(reader=Ensemble(documents=3, temperature=2)),
    Parts(reader=Ensemble(documents=2), mixer=UniformWeights()),
    Parts(reader=Concatenation(documents=2)),
]


def plain_log_prob(model: WritingModel, prompts: Sequence[str], weights: Sequence[float], text: str) -> float:
    """The log-probability of a text under the average of the prompts' distributions, token by token."""
    first = full_tokenizer(model.tokenizer).special_tokens.before
    tokens = model.tokenizer.encode(text)
    total = 0.0
    for place, token in enumerate(tokens.tolist()):
        mixed = 0.0
        for prompt, weight in zip(prompts, weights, strict=True):
            read = np.concatenate([first, model.tokenizer.encode(prompt), tokens[:place]])
            mixed += weight * float(np.exp(model.continuations().next_tokens([read]).log_probs_BC[0][token]))
        total += float(np.log(mixed))
    return total


def plain_prompts(question: ChoiceQuestion, parts: Parts) -> tuple[list[str], list[float]]:
    """The prompts of a question with the passages of `Given`, written out, and their weights."""

    def asked(one: ChoiceQuestion, texts: Sequence[str]) -> str:
        choices = " ".join(f"{letter}. {choice}" for letter, choice in zip("ABCD", one.choices, strict=False))
        knowledge = "Knowledge: " + "\n".join(texts) + "\n" if texts else ""
        return f"{knowledge}Question: {one.text}\n{choices}\nAnswer:"

    def found(one: ChoiceQuestion, k: int) -> list[str]:
        return [PASSAGES[number].text for number in order_for(one.id)[:k]]

    shown = [one for one in SHOWN if one.subject == question.subject and one is not question]
    before = "".join(f"{asked(one, found(one, 1))} {'ABCD'[one.gold]}\n\n" for one in shown)
    texts = found(question, parts.hits)
    if isinstance(parts.reader, Concatenation):
        return [before + asked(question, texts)], [1.0]
    uniform = isinstance(parts.mixer, UniformWeights)
    weights = np.ones(len(texts)) if uniform else np.exp((3 - np.arange(3.0)) / 2)
    return [before + asked(question, [text]) for text in texts], (weights / weights.sum()).tolist()


def chosen(model: WritingModel, parts: Parts, join: Any = "tokens") -> AnswerEvaluation:
    return evaluate_choices(
        QUESTIONS,
        model,
        LETTER,
        source=Given(),
        parts=parts,
        demonstrations=SHOWN,
        options=AnswerOptions(join=join),
        baseline=True,
    )


@pytest.mark.parametrize("parts", READERS, ids=lambda parts: type(parts.reader).__name__)
def test_choices_are_those_of_the_plain_loop(model: WritingModel, parts: Parts) -> None:
    for row in chosen(model, parts).rows:
        prompts, weights = plain_prompts(row.question, parts)
        letters = "ABCD"[: len(row.question.choices)]
        worths = np.array([plain_log_prob(model, prompts, weights, f" {letter}") for letter in letters])
        probabilities = np.exp(worths) / np.exp(worths).sum()
        assert row.judged.log_probs_C == pytest.approx(worths, abs=1e-3)
        assert row.judged.probabilities_C == pytest.approx(probabilities, abs=1e-3)
        assert row.judged.chosen == int(np.argmax(worths))
        assert row.judged.gold == row.question.gold
        assert row.judged.right is (int(np.argmax(worths)) == row.question.gold)
        assert sum(row.judged.shares.values()) == pytest.approx(1, abs=1e-4)
        assert row.closed is not None
        assert row.closed.log_probs_C is not None


def test_the_retriever_is_asked_with_question_and_choices(model: WritingModel) -> None:
    source = Given()
    evaluate_choices(QUESTIONS[:1], model, LETTER, source=source, demonstrations=SHOWN[:1])
    assert source.asked == [
        "Who keeps the sheep?\n(A) the dog\n(B) a whale\n(C) the whole town by night",
        "Who barks?\n(A) cats\n(B) dogs",
    ]


def test_the_shares_of_passages_are_those_of_what_was_chosen(model: WritingModel) -> None:
    parts = Parts(reader=Ensemble(documents=3, temperature=2))
    [row, *_] = chosen(model, parts).rows
    assert row.judged.chosen is not None
    prompts, weights = plain_prompts(row.question, parts)
    letter = " " + "ABC"[row.judged.chosen]
    joint = [w * np.exp(plain_log_prob(model, [p], [1.0], letter)) for p, w in zip(prompts, weights, strict=True)]
    for passage, share in zip(row.passages, joint / np.sum(joint), strict=True):
        assert row.judged.shares[passage.number] == pytest.approx(share, abs=1e-4)


def test_measures_are_those_of_the_rows(model: WritingModel) -> None:
    evaluation = chosen(model, Parts(reader=Ensemble(documents=2)))
    summary: Any = evaluation.summary()
    right = np.array([float(row.judged.right) for row in evaluation.rows])
    closed = np.array([float(row.closed.right) for row in evaluation.rows if row.closed])
    assert summary["accuracy"] == pytest.approx(right.mean())
    assert summary["closed_book"]["accuracy"] == pytest.approx(closed.mean())
    assert summary["difference"]["accuracy"] == pytest.approx((right - closed).mean())
    assert summary["chance"] == pytest.approx((1 / 3 + 1 / 2 + 1 / 4) / 3)
    golds = [row.judged.probabilities_C[row.judged.gold] for row in evaluation.rows]
    assert summary["gold_log_prob"] == pytest.approx(np.mean(np.log(golds)))
    assert summary["subjects"]["astronomy"]["questions"] == 2
    assert summary["subjects"]["astronomy"]["accuracy"] == pytest.approx(right[1:].mean())
    assert summary["STEM"] == pytest.approx(right[1:].mean())
    assert summary["social sciences"] == right[0]
    assert "humanities" not in summary
    assert summary["mean_of_subjects"] == pytest.approx((right[0] + right[1:].mean()) / 2)
    difference = summary["gold_log_prob"] - summary["closed_book"]["gold_log_prob"]
    assert summary["difference"]["gold_log_prob"] == pytest.approx(difference)
    assert summary["difference"]["STEM"] == pytest.approx((right - closed)[1:].mean())
    assert summary["accuracy_interval"] is None, "of three questions"


@pytest.mark.parametrize(
    ("answer", "place"),
    [
        ("B", 1),
        (" b ", 1),
        ("(A)", 0),
        ("A.", 0),
        ("The answer is C.", 2),
        ("The answer is D, no, the answer is (B)", 1),
        ("", None),
        ("The", None),
        ("a dog", None),
        ("an A", None),
        ("AB", None),
        ("E", None),
        ("...", None),
    ],
)
def test_an_answer_is_read_as_a_letter(answer: str, place: int | None) -> None:
    assert letter_of(answer, "ABCD") == place


def test_written_letters_add_up(model: WritingModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each prompt answers alone; equal answers add up; the best one is read as a letter, and `a` is no article."""
    seen: list[Any] = []

    def answer_all(asked: Any, *_: object) -> Any:
        seen.extend(asked)
        return [(number, Answer(text, [], {1: 1.0}), None) for number, text in enumerate(["(A)", "", "d"])]

    with monkeypatch.context() as patched:
        patched.setattr(multiple_choice, "answer_all", answer_all)
        rows = chosen(model, Parts(reader=Ensemble(documents=2)), "answers").rows
    assert [row.judged.chosen for row in rows] == [0, None, 3]
    assert [row.judged.right for row in rows] == [True, False, True]
    assert [row.judged.answer for row in rows] == ["(A)", "", "d"]
    assert len(seen) == 6
    assert [len(one.prompts) for one in seen] == [2, 2, 2, 1, 1, 1]


def test_written_letters_of_a_model(model: WritingModel) -> None:
    evaluation = chosen(model, Parts(reader=Ensemble(documents=2)), "answers")
    summary: Any = evaluation.summary()
    assert summary["no_choice"] == sum(row.judged.chosen is None for row in evaluation.rows)
    assert "gold_log_prob" not in summary, "nothing is known of it"
    for row in evaluation.rows:
        assert row.judged.answer is not None
        assert row.judged.chosen == letter_of(row.judged.answer, row.question.letters)


class NoCapitals(WordTokenizer):
    """Knows no capital letters: they are all the same token."""

    def encode(self, text: str) -> Any:
        return super().encode(" ".join("?" if word.isupper() else word for word in text.split()))


def test_choices_that_a_model_cannot_tell_apart() -> None:
    model = CountingModel(NoCapitals(), max_length=200)
    with pytest.raises(UsageError, match="two letters of question a are the same tokens for counting"):
        evaluate_choices(QUESTIONS[:1], model, LETTER)


def test_what_does_not_fit(model: WritingModel) -> None:
    """Demonstrations go first, then passages, and it is recorded; a question never goes, and is refused at once."""
    tokens = len(model.tokenizer.encode(str(LETTER.text(QUESTIONS[0].text, (), QUESTIONS[0].choices))))
    demonstration = LETTER.demonstration(SHOWN[0].text, "B", (), SHOWN[0].choices)

    def cut(length: int) -> tuple[int, int]:
        parts: Any = {"demonstrations": SHOWN, "options": AnswerOptions(max_length=length)}
        [row] = evaluate_choices(QUESTIONS[:1], model, LETTER, **parts).rows
        return row.judged.cut.demonstrations, row.judged.cut.documents

    whole = tokens + len(model.tokenizer.encode(demonstration))
    assert cut(whole) == (0, 0)
    assert cut(whole - 5) == (5, 0)
    assert cut(tokens) == (whole - tokens, 0)
    source = Given()
    with pytest.raises(UsageError, match=f"question a has {tokens} tokens .* and only {tokens - 1} fit"):
        evaluate_choices(QUESTIONS, model, LETTER, source=source, options=AnswerOptions(max_length=tokens - 1))
    assert not source.asked, "before anything is retrieved"
    with pytest.raises(UsageError, match="is beyond the 1024 tokens"):
        evaluate_choices(QUESTIONS, model, LETTER, options=AnswerOptions(max_length=9999))


def test_demonstrations_of_a_subject(model: WritingModel) -> None:
    with pytest.raises(UsageError, match="`demonstrations` has none of the subject 'sociology'"):
        evaluate_choices(QUESTIONS, model, LETTER, demonstrations=SHOWN[1:])
    whatever = [ChoiceQuestion("z", "Who?", ("I", "you"), 0)]
    evaluate_choices(QUESTIONS, model, LETTER, demonstrations=whatever)


def test_a_model_that_gives_no_choice_any_probability() -> None:
    class Silent(CountingModel):
        def score(self, passes: Any) -> Any:
            return [np.full(len(one.targets_P), -np.inf, dtype=np.float32) for one in passes]

    [row] = evaluate_choices(QUESTIONS[1:2], Silent(WordTokenizer(), max_length=99), LETTER).rows
    assert row.judged.chosen is None
    assert not row.judged.right
    assert row.judged.probabilities_C == pytest.approx([0.5, 0.5])


def test_an_impossible_right_choice_leaves_out_its_logarithm(model: WritingModel) -> None:
    class NoB(CountingModel):
        def score(self, passes: Any) -> Any:
            found = super().score(passes)
            b = self.tokenizer.encode("B")[0]
            return [np.where(one.tokens_N[one.targets_P] == b, -np.inf, two) for one, two in zip(passes, found)]  # noqa: B905

    evaluation = evaluate_choices(QUESTIONS[1:2], NoB(WordTokenizer(), max_length=99), LETTER)
    summary = evaluation.summary()
    assert "gold_log_prob" not in summary


ASKED: Any = {"source": Given(), "parts": Parts(reader=Ensemble(documents=2)), "baseline": True}


@pytest.mark.parametrize(
    ("questions", "options"),
    [
        (QUESTIONS, AnswerOptions()),
        (QUESTIONS, AnswerOptions(join="answers", new_tokens=3)),
        (
            [one.with_letter for one in QUESTIONS],
            AnswerOptions(new_tokens=3),
        ),
    ],
    ids=["letter", "generated", "questions"],
)
def test_a_run_resumes_without_reading_anything_twice(
    model: WritingModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, questions: Any, options: Any
) -> None:
    from ralm.storage import outputs

    parts = {**ASKED, "demonstrations": questions[:2], "options": options}
    run_questions(tmp_path / "whole", questions, model, LETTER, **parts)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(outputs, "new_folder", killed)
        with pytest.raises(KeyboardInterrupt):
            run_questions(tmp_path / "run", questions, model, LETTER, **parts)
    assert (tmp_path / "run.unfinished").is_dir()
    with pytest.raises(UsageError, match="begun with other settings"):
        run_questions(tmp_path / "run", questions[1:], model, LETTER, **parts)
    with pytest.raises(UsageError, match=r"begun with other settings \(options"):
        other = replace(options, max_length=500)
        run_questions(tmp_path / "run", questions, model, LETTER, **parts | {"options": other})

    class Silent:
        def __getattr__(self, name: str) -> Any:
            assert name not in ("continuations", "score"), "everything was kept"
            return getattr(model, name)

    run_questions(tmp_path / "run", questions, Silent(), LETTER, **parts)
    assert not (tmp_path / "run.unfinished").exists()
    for table in tmp_path.glob("whole/*.parquet"):
        again = pq.read_table(tmp_path / "run" / table.name).to_pylist()
        for one, other in zip(pq.read_table(table).to_pylist(), again, strict=True):
            for name, value in one.items():
                numbers = isinstance(value, float) or (isinstance(value, list) and isinstance(value[0], float))
                assert other[name] == (pytest.approx(value, abs=1e-5) if numbers else value)


def test_the_tables(model: WritingModel, tmp_path: Path) -> None:
    questions = [*QUESTIONS, ChoiceQuestion("x", "Who?", ("I", "you"), 1)]
    evaluation: Any = run_questions(tmp_path / "run", questions, model, LETTER, **ASKED)
    rows = pq.read_table(tmp_path / "run" / "choices.parquet").to_pylist()
    assert [row["gold"] for row in rows] == ["A", "B", "D", "B"]
    assert [row["category"] for row in rows] == ["social sciences", "STEM", "STEM", None]
    assert [row["subject"] for row in rows] == ["sociology", "astronomy", "astronomy", None]
    for row, one in zip(rows, evaluation.rows, strict=True):
        assert row["right"] == (row["chosen"] == row["gold"])
        assert row["choices"] == [*one.question.choices]
        assert len(row["log_probs"]) == len(row["probabilities"]) == len(row["choices"])
        assert sum(row["probabilities"]) == pytest.approx(1)
        assert row["passages"] == [passage.number for passage in one.passages]
        assert sum(row["shares"]) == pytest.approx(1, abs=1e-4)
        assert row["answer"] is None
        assert row["closed_chosen"] in ("A", "B", "C", "D")
    passages = pq.read_table(tmp_path / "run" / "passages.parquet").to_pylist()
    assert [row["text"] for row in passages] == [PASSAGES[row["passage"]].text for row in passages]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["accuracy"] == sum(row["right"] for row in rows) / 4
    assert summary["config"]["questions"]["count"] == 4
    assert [*summary["subjects"]] == ["astronomy", "sociology"], "a question without a subject is in none"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rows = [
        {"question": one.text, "choices": one.choices, "answer": one.gold, "subject": one.subject} for one in QUESTIONS
    ]
    passages = [{"title": one.title, "text": one.text} for one in PASSAGES]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [{**row, "ctxs": passages} for row in rows]
    (tmp_path / "given.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
    documents = [{"id": p.document_id, "title": p.title, "text": p.text} for p in PASSAGES]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    for split in ("dev", "test"):
        (tmp_path / split).mkdir()
        for subject in ("anatomy", "sociology"):
            lines = [f"What is {number} of {subject} {split}?,one,two,three,four,B\n" for number in range(6)]
            (tmp_path / split / f"{subject}_{split}.csv").write_text("".join(lines))
    return tmp_path


def test_the_command(files: Path) -> None:
    assert ralm("index", files / "corpus.jsonl", "--out", files / "index").status == 0
    asking = ["qa", files / "questions.jsonl", "--lm", "ralm-tiny"]
    reader = ["--reader", "ensemble", "--documents", "2"]
    answer = ralm(*asking, "--index", files / "index", *reader, "--baseline", "--out", files / "run")
    assert answer.status == 0, answer.err
    assert "closed book" in answer.out
    assert "change from the first" in answer.out
    assert "social sciences" in answer.out
    assert "\N{HORIZONTAL ELLIPSIS}" not in answer.out
    assert "3 questions: no interval" in answer.out
    assert "chance 36.1%" in answer.out
    assert pq.read_table(files / "run" / "choices.parquet")["closed_chosen"].null_count == 0
    assert ralm("check", files / "run").status == 0
    given = json.loads(ralm(*asking, "--retrieved", files / "given.jsonl", "--json").out)
    assert given["questions"] == 3
    assert given["config"]["prompt"]["between_choices"] == " "
    failed(ralm(*asking, "--index", files / "index", "--out", files / "run"), 1, "already exists")


def test_a_reranker_reads_the_question_and_the_retriever_its_choices_too(files: Path) -> None:
    with (files / "corpus.jsonl").open("a") as corpus:
        corpus.write(json.dumps({"id": "song", "text": "Who sings? asked the teacher."}) + "\n")
    assert ralm("index", files / "corpus.jsonl", "--out", files / "index").status == 0
    asking = ["qa", files / "questions.jsonl", "--lm", "ralm-tiny", "--index", files / "index"]
    done(*asking, "--rerank", "lexical", "--out", files / "run")
    source = FromRetriever.of_index(files / "index")
    expected: list[list[int]] = []
    with_choices: list[list[int]] = []
    for one in QUESTIONS:
        hits = source.retriever.retrieve([one.query.text], 16).of(0)
        for text, found in ((one.text, expected), (one.query.text, with_choices)):
            ends = ends_of(text)
            scores = [
                score + 2 * shared_words(ends, spaced(source.passages[number].contents)) for number, score in hits
            ]
            found.append([hits[int(np.argmax(scores))][0]])
    assert pq.read_table(files / "run" / "choices.parquet")["passages"].to_pylist() == expected
    assert expected != with_choices


def test_mmlus_folders_by_the_command(files: Path) -> None:
    asking = ["qa", files / "test", "--lm", "ralm-tiny", "--limit", "2", "--json"]
    found = json.loads(ralm(*asking, "--demonstrations", files / "dev").out)
    assert found["questions"] == 4, "2 of each subject"
    assert found["config"]["demonstrations"]["count"] == 10, "5 of each subject"
    assert {"social sciences", "STEM"} <= found.keys()
    written = json.loads(ralm(*asking, "--join", "answers", "--new-tokens", "2").out)
    assert written["no_choice"] <= 4


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--retrieved", "questions.jsonl"], 1, "has no passages"),
        (["--prompt", "replug"], 2, "give a --prompt with {choices}"),
        (["--semantics", "official"], 2, "--semantics is of open questions"),
        (["--fields", "answers=c"], 1, "line 1 has no field 'c'"),
        (["--fields", "c"], 2, "--fields takes keys as key=value, not 'c'"),
        (["--demonstrations", "dev"], 2, "--demonstrations has none of the subject 'astronomy'"),
    ],
)
def test_bad_input(files: Path, options: list[str], status: int, said: str) -> None:
    options = [str(files / one) if (files / one).exists() else one for one in options]
    failed(ralm("qa", files / "questions.jsonl", "--lm", "ralm-tiny", *options), status, said)


def test_fields_of_a_table(files: Path) -> None:
    asking = ["qa", files / "test", "--lm", "ralm-tiny", "--fields", "question=q"]
    failed(ralm(*asking), 1, "line 1 has no field 'q'; its fields are id, question, choices, answer, subject")

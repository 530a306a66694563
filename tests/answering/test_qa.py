"""Question answering evaluated, in the library and by the command: figures, passages, resuming, and rejected input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from ralm.answering.answers import answer_all, gold_log_probs, room_for_prompts
from ralm.answering.evaluation import evaluate_questions
from ralm.answering.metrics import exact_match, f1
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import open_prompt
from ralm.answering.questions import Question
from ralm.answering.run import questions_config, run_questions
from ralm.answering.sources import GivenPassages, PromptBuilder
from ralm.errors import InputError, UsageError
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import WritingModel
from ralm.reading.mixture import UniformWeights
from ralm.reading.parts import Parts
from ralm.reading.readers import Concatenation, Ensemble
from ralm.reading.sources import FromRetriever
from ralm.records import FloatArray, IntArray
from ralm.reranking.lexical import ends_of, shared_words, spaced
from ralm.retrieval.retrieval_file import RetrievedPassage
from ralm.storage.store import Store
from tests.answering.given import PASSAGES, Given
from tests.cli.program import failed, printed, ralm

QUESTIONS = [
    Question("a", "what keeps the sheep together", ("a dog", "the dog")),
    Question("b", "Who sings in the sea?", ("whales",)),
    Question("c", "what is sold", ("bread", "fish")),
]
PROMPT = open_prompt("replug")


def next_log_probs(model: WritingModel, tokens: IntArray) -> FloatArray:
    log_probs_V: FloatArray = model.continuations().next_tokens([tokens]).log_probs_BC[0]
    return log_probs_V


def test_an_ensemble_answers_token_by_token_as_the_plain_loop(model: WritingModel) -> None:
    options = AnswerOptions(new_tokens=5)
    builder = PromptBuilder(
        PROMPT, model.tokenizer, room_for_prompts(model, options), Parts(reader=Ensemble(documents=3, temperature=2))
    )
    hits = [(0, 3.0), (2, 2.0), (1, 0.5)]
    asked = builder.build(QUESTIONS[0], hits, PASSAGES)
    weights = np.exp(np.array([score for _, score in hits]) / 2)
    weights /= weights.sum()
    prompts = [model.tokenizer.encode(str(PROMPT.text(QUESTIONS[0].text, [PASSAGES[n]]))) for n, _ in hits]
    first = full_tokenizer(model.tokenizer).special_tokens.before
    texts = [np.concatenate([first, prompt]) for prompt in prompts]
    for prompt_prefix, text in zip(asked.prompts, texts, strict=True):
        assert prompt_prefix.tokens.tolist() == text.tolist()
    written, log_prob = [], 0.0
    for _ in range(options.new_tokens):
        mixed = sum(w * np.exp(next_log_probs(model, text)) for w, text in zip(weights, texts, strict=True))
        token = int(np.argmax(mixed))
        if token in model.end_tokens:
            break
        written.append(token)
        log_prob += float(np.log(mixed[token]))
        texts = [np.append(text, token) for text in texts]
    [(number, answer, _)] = answer_all([asked], model, options)
    assert number == 0
    if "\n" not in model.tokenizer.decode(np.array(written)):
        assert [token.token for token in answer.tokens] == written
        assert answer.log_prob == pytest.approx(log_prob, abs=1e-3)
        assert sum(answer.shares.values()) == pytest.approx(1, abs=1e-4)


def test_the_gold_answer_is_scored_as_the_plain_loop(model: WritingModel) -> None:
    builder = PromptBuilder(PROMPT, model.tokenizer, 400, Parts(reader=Ensemble(documents=2), mixer=UniformWeights()))
    asked = builder.build(QUESTIONS[1], [(1, 2.0), (0, 1.0)], PASSAGES)
    [found] = gold_log_probs([asked], PROMPT, model)
    gold = model.tokenizer.encode(" whales")
    total = 0.0
    for place, token in enumerate(gold.tolist()):
        texts = [np.concatenate([prompt_prefix.tokens, gold[:place]]) for prompt_prefix in asked.prompts]
        total += float(np.log(np.mean([np.exp(next_log_probs(model, text)[token]) for text in texts])))
    assert found is not None
    assert found[0] == pytest.approx(total, abs=1e-3)
    assert found[1] == len(gold)


def test_answers_that_add_up(model: WritingModel) -> None:
    options = AnswerOptions(new_tokens=4, join="answers")
    builder = PromptBuilder(PROMPT, model.tokenizer, 400, Parts(reader=Ensemble(documents=3)))
    asked = builder.build(QUESTIONS[2], [(0, 2.0), (1, 1.5), (2, 1.0)], PASSAGES)
    alone = [answer for _, answer, _ in answer_all([asked], model, options)]
    single = AnswerOptions(new_tokens=4)
    sums: dict[str, float] = {}
    for prompt_prefix, weight in zip(asked.prompts, np.exp(asked.prompts.log_weights_K), strict=True):
        one = PromptBuilder(PROMPT, model.tokenizer, 400).build(QUESTIONS[2], [(prompt_prefix.passage, 0.0)], PASSAGES)
        [(_, answer, _)] = answer_all([one], model, single)
        mean = answer.log_prob / len(answer.tokens) if answer.tokens else -np.inf
        sums[answer.text.strip()] = sums.get(answer.text.strip(), 0.0) + float(weight * np.exp(mean))
    assert alone[0].text == max(sums, key=lambda text: sums[text])


def test_several_documents_in_one_prompt_and_demonstrations(model: WritingModel) -> None:
    shown = [(Question("d", "who barks", ("dogs",)), PASSAGES[:1]), (QUESTIONS[0], PASSAGES[1:2])]
    builder = PromptBuilder(PROMPT, model.tokenizer, 400, Parts(reader=Concatenation(documents=2)), shown)
    [prompt_prefix] = builder.build(QUESTIONS[1], [(1, 2.0), (2, 1.0)], PASSAGES).prompts
    text = model.tokenizer.decode(prompt_prefix.tokens)
    assert prompt_prefix.passages == (1, 2)
    assert text.endswith(
        "Knowledge: The dog keeps the sheep together on the green hill.\nQuestion: who barks\nAnswer: dogs\n\n"
        "Knowledge: The whales sing in the deep blue sea by night.\nQuestion: what keeps the sheep together\n"
        "Answer: a dog\n\nKnowledge: The whales sing in the deep blue sea by night.\n"
        "Fish, wool and bread are sold in the town.\nQuestion: Who sings in the sea?\nAnswer:"
    )
    [prompt_prefix] = builder.build(QUESTIONS[0], [(1, 2.0)], PASSAGES).prompts
    assert model.tokenizer.decode(prompt_prefix.tokens).count("what keeps the sheep") == 1, (
        "it is not its own demonstration"
    )


@pytest.mark.parametrize("join", ["tokens", "answers"])
def test_a_question_among_the_demonstrations(model: WritingModel, join: Any) -> None:
    """The paper's reading leaves it out of its own demonstrations; REPLUG's code skips it, and counts it as wrong."""
    named_a = Question("a", QUESTIONS[0].text, ("A", *QUESTIONS[0].answers))  # an empty answer equals "A"
    asking = [named_a, *QUESTIONS[1:]]
    parts: Any = {"source": Given(), "parts": Parts(reader=Ensemble(documents=2)), "demonstrations": [named_a]}
    parts |= {"options": AnswerOptions(new_tokens=3, join=join), "baseline": True}
    paper = evaluate_questions(asking, model, PROMPT, **parts)
    official = evaluate_questions(asking, model, PROMPT, semantics="official", **parts)
    first = official.rows[0]
    for judged in (first.judged, first.without, first.closed):
        assert judged is not None
        assert judged.answer.text == ""
        assert {*judged.measures.values()} == {0}
        assert judged.gold_log_prob is None
    assert not first.judged.cut
    assert [one.number for one in first.passages] == [0, 1]
    assert paper.rows[0].judged.gold_tokens
    for one, other in zip(paper.rows[1:], official.rows[1:], strict=True):
        assert one.judged.answer.text == other.judged.answer.text
        assert one.judged.gold_log_prob == pytest.approx(other.judged.gold_log_prob, abs=1e-4)
    summary: Any = official.summary()
    assert summary["questions"] == 3
    assert summary["exact_match"] == sum(bool(row.judged.measures["exact_match"]) for row in official.rows[1:]) / 3


def test_measures_are_those_of_the_rows(model: WritingModel) -> None:
    reader = Ensemble(documents=2)
    evaluation = evaluate_questions(QUESTIONS, model, PROMPT, source=Given(), baseline=True, parts=Parts(reader=reader))
    summary: Any = evaluation.summary()
    rows = evaluation.rows
    assert [row.question.id for row in rows] == ["a", "b", "c"]
    for row in rows:
        assert row.judged.measures["exact_match"] is exact_match(row.judged.answer.text, row.question.answers)
        assert row.judged.measures["f1"] == f1(row.judged.answer.text, row.question.answers)
        assert row.closed is not None
    assert [row.answer_at for row in rows] == [1, 1, 1]
    assert (summary["has_answer"], summary["has_answer_at"]) == (1.0, {"1": 1.0, "2": 1.0})
    assert summary["no_passage"] == 0
    total = sum(row.judged.gold_log_prob or 0 for row in rows)
    tokens = sum(row.judged.gold_tokens or 0 for row in rows)
    assert summary["gold_log_prob"] == pytest.approx(total / tokens)
    assert summary["gold_log_prob_interval"] is None, "of three questions"
    difference = summary["gold_log_prob"] - summary["without_passages"]["gold_log_prob"]
    assert summary["closed_book"]["gold_log_prob"] != summary["without_passages"]["gold_log_prob"]
    assert summary["difference"]["gold_log_prob"] == pytest.approx(difference)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    bare = [{"question": one.text, "answers": list(one.answers)} for one in QUESTIONS]
    passages = [{"title": one.title, "text": one.text} for one in PASSAGES]
    (tmp_path / "questions.json").write_text(json.dumps([{**one, "ctxs": passages} for one in bare]))
    (tmp_path / "bare.jsonl").write_text("".join(json.dumps(one) + "\n" for one in bare))
    documents = [{"id": p.document_id, "title": p.title, "text": p.text} for p in PASSAGES]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in documents))
    return tmp_path


def test_the_command(files: Path) -> None:
    assert ralm("index", files / "corpus.jsonl", "--out", files / "index").status == 0
    asking = ["qa", files / "bare.jsonl", "--lm", "ralm-tiny"]
    answer = ralm(*asking, "--index", files / "index", "--baseline", "--out", files / "run")
    assert answer.status == 0, answer.err
    assert "closed book" in answer.out
    assert "an answer is in the first 1: 100.0%" in answer.out
    table = pq.read_table(files / "run" / "answers.parquet")
    assert table["passages"].to_pylist() == [[0], [1], [2]]
    assert table["closed_answer"].null_count == table["without_answer"].null_count == 0
    given = json.loads(ralm(*asking, "--retrieved", files / "questions.json", "--json").out)
    assert given["questions"] == 3
    assert ralm("check", files / "run").status == 0
    failed(ralm(*asking, "--index", files / "index", "--out", files / "run"), 1, "already exists")


def test_passages_chosen_by_a_reranker_are_those_of_a_plain_loop(files: Path) -> None:
    assert ralm("index", files / "corpus.jsonl", "--out", files / "index").status == 0
    asking = ["qa", files / "bare.jsonl", "--lm", "ralm-tiny", "--index", files / "index", "--new-tokens", 2]
    source = FromRetriever.of_index(files / "index")
    answer = ralm(*asking, "--rerank", "lexical", "--out", files / "run")
    assert answer.status == 0
    expected = []
    for one in QUESTIONS:
        found = source.retriever.retrieve([one.text], 16).of(0)
        ends = ends_of(one.text)
        scores = [score + 2 * shared_words(ends, spaced(source.passages[number].contents)) for number, score in found]
        expected.append([found[int(np.argmax(scores))][0]])
    assert pq.read_table(files / "run" / "answers.parquet")["passages"].to_pylist() == expected
    asked = ("ask", QUESTIONS[0].text, *asking[2:], "--rerank", "lexical", "--json")
    assert [one["passage"] for one in json.loads(ralm(*asked).out)["sources"]] == expected[0]
    failed(ralm("ask", "Who?", *asking[2:], "--rerank", "oracle"), 2, "reads the answer")
    assert ralm(*asking, "--rerank", "zero-shot").status == 0
    by_another = printed(*asking, "--rerank", "zero-shot:lm=ralm-tiny")
    assert by_another["config"]["passages"]["model"]["name"] == "ralm-tiny"
    failed(ralm(*asking, "--rerank", "oracle"), 2, "reads the answer")
    failed(ralm(*asking[:4], "--rerank", "lexical"), 2, "give --index or")
    failed(
        ralm(*asking, "--rerank", f"lexical:candidates={2}", "--reader", "ensemble"),
        2,
        "--rerank chooses among 2 candidates, and 10 documents are read",
    )


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--reader", "ensemble"], 2, "read passages: give --index or another source"),
        (["--baseline"], 2, "--baseline has no effect"),
        (["--shots", "3"], 2, "--shots has no effect without --demonstrations"),
        (["--retrieved", "bare.jsonl"], 1, "has no passages"),
    ],
)
def test_bad_input(files: Path, options: list[str], status: int, said: str) -> None:
    options = [str(files / one) if one.endswith(".jsonl") else one for one in options]
    failed(ralm("qa", files / "bare.jsonl", "--lm", "ralm-tiny", *options), status, said)


def test_a_question_that_the_file_of_passages_lacks(model: WritingModel) -> None:
    from ralm.answering.sources import GivenPassages

    passage = RetrievedPassage(text="x")
    source = GivenPassages([Question("1", "known", (), (passage,))], {})
    with pytest.raises(InputError, match="does not have question a"):
        source.find(QUESTIONS, 1)
    with pytest.raises(UsageError, match="has no answer"):
        PromptBuilder(PROMPT, model.tokenizer, 100, Parts(), [(Question("1", "known"), [])])


def test_questions_without_gold_answers_are_answered_but_not_judged(model: WritingModel, tmp_path: Path) -> None:
    asked = [*QUESTIONS[:2], Question("d", "who knows", ())]
    evaluation = evaluate_questions(asked, model, PROMPT, source=Given(), baseline=True)
    alone: Any = evaluate_questions(asked[:2], model, PROMPT, source=Given(), baseline=True).summary()
    summary: Any = evaluation.summary()
    assert summary["without_answers"] == 1
    for name in ("exact_match", "token_match", "f1", "has_answer"):
        assert summary[name] == pytest.approx(alone[name], abs=1e-6)
    last = evaluation.rows[2].judged
    assert (last.measures, last.gold_log_prob) == ({}, None)
    run_questions(tmp_path / "run", asked, model, PROMPT, source=Given())
    table = pq.read_table(tmp_path / "run" / "answers.parquet").to_pylist()
    assert [row["exact_match"] is None for row in table] == [False, False, True]
    assert "exact match (2 questions)" in ralm("report", tmp_path / "run").out


def test_given_passages_of_questions_with_one_text() -> None:
    paris, rome = (
        Question(name, "What is the capital?", (name,), (RetrievedPassage(text=f"{name} is the capital."),))
        for name in ("Paris", "Rome")
    )
    source = GivenPassages([paris, rome], {})
    hits, passages = source.find([paris, rome], 1)
    assert [passages[hits.of(row)[0][0]].text for row in range(2)] == ["Paris is the capital.", "Rome is the capital."]
    with pytest.raises(InputError, match="several lists of passages"):
        source.find([Question("other", "What is the capital?")], 1)
    unknown = Question("x", "Who?", (), paris.passages)
    assert source.find([unknown], 1)[1][0].text == "Paris is the capital."  # those that it brings itself


def test_a_stored_answer_ends_where_it_was_asked_to(model: WritingModel, tmp_path: Path) -> None:
    asked = [PromptBuilder(PROMPT, model.tokenizer, 400).build(QUESTIONS[0], [(0, 0.0)], PASSAGES)]
    with Store(tmp_path / "answers") as store:
        for tokens in (2, 4):
            [(_, answer, _)] = answer_all(asked, model, AnswerOptions(new_tokens=tokens, stop=("~",)), store)
            [(_, alone, _)] = answer_all(asked, model, AnswerOptions(new_tokens=tokens, stop=("~",)))
            assert [one.token for one in answer.tokens] == [one.token for one in alone.tokens]
            assert len(answer.tokens) == tokens


def test_passages_that_questions_bring_decide_where_the_file_lacks_them(model: WritingModel) -> None:
    source = GivenPassages([Question("1", "known", (), (RetrievedPassage(text="x"),))], {"passages": "given"})
    shown = [Question("2", "other", ("y",), (RetrievedPassage(text=text),)) for text in ("one", "another")]
    configs = [questions_config(QUESTIONS, model, PROMPT, source=source, demonstrations=[one]) for one in shown]
    assert configs[0] != configs[1]
    asked = [questions_config(QUESTIONS, model, PROMPT, source=Given(), demonstrations=[one]) for one in shown]
    assert asked[0] == asked[1], "a retriever is asked, and they are not read"


def test_shares_of_a_passage_that_a_file_lists_twice(model: WritingModel, tmp_path: Path) -> None:
    twice = [
        RetrievedPassage(text=text) for text in ("The dog keeps the sheep.", "The dog keeps the sheep.", "Whales.")
    ]
    asked = [Question("a", "what keeps the sheep", ("a dog",), tuple(twice))]
    run_questions(
        tmp_path / "run",
        asked,
        model,
        PROMPT,
        source=GivenPassages(asked, {}),
        parts=Parts(reader=Ensemble(documents=3)),
    )
    [row] = pq.read_table(tmp_path / "run" / "answers.parquet").to_pylist()
    assert row["passages"] == [0, 0, 1]
    assert sum(row["shares"]) == pytest.approx(1)
    assert row["shares"][1] == 0

"""`ralm ask` and `Answerer`: answers with their sources, streams, chat models, and rejected input."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from ralm.answering.answerer import Answerer, SourcedAnswer
from ralm.answering.answers import room_for_prompts
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import open_prompt
from ralm.answering.questions import Question
from ralm.answering.sources import PromptBuilder
from ralm.errors import UsageError
from ralm.lm.registry import ModelOptions, load_language_model
from ralm.protocols import WritingModel
from ralm.reading.mixture import UniformWeights
from ralm.reading.parts import Parts
from ralm.reading.readers import Ensemble
from ralm.reading.sources import FromRetriever
from tests.cli.program import failed, ralm
from tests.tiny_models import save_tiny_model

TEXTS = {
    "hill": ("The Hill", "The dog keeps the sheep together on the green hill."),
    "sea": ("The Sea", "The whales sing in the deep blue sea by night."),
    "town": ("The Town", "Fish, wool and bread are sold in the town by the sea."),
}
QUESTIONS = ["What keeps the sheep together on the hill?", "Who sings in the sea?", "What is sold by the sea?"]
PROMPT = open_prompt("replug")
TEMPLATE = (
    "<s>{% for message in messages %}user: {{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}model: {% endif %}"
)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ask")
    lines = [json.dumps({"id": name, "title": title, "text": text}) for name, (title, text) in TEXTS.items()]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    assert ralm("index", folder / "corpus.jsonl", "--out", folder / "index").status == 0
    return folder / "index"


@pytest.fixture(scope="module")
def source(index: Path) -> FromRetriever:
    return FromRetriever.of_index(index)


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_tiny_model("gpt2", tmp_path_factory.mktemp("chat"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def forced(model: WritingModel, prompts: list[list[int]], answer: SourcedAnswer) -> np.ndarray:
    """The log-probability of each token of an answer behind each prompt, one forward pass for each token."""
    tokens = [token.token for token in answer.answer.tokens]
    rows = [
        [
            model.continuations().next_tokens([np.array(prompt + tokens[:place])]).log_probs_BC[0][token]
            for place, token in enumerate(tokens)
        ]
        for prompt in prompts
    ]
    return np.array(rows)


def prompts_of(model: WritingModel, source: FromRetriever, question: str, k: int) -> tuple[list[list[int]], list[int]]:
    """The prompt with the same words and no passage, then that of each of the first k."""
    room = room_for_prompts(model, AnswerOptions())
    asked = Question("1", question)
    hits, passages = source.search([question], k), source.passages
    without = replace(PROMPT, closed="Knowledge: \nQuestion: {question}\nAnswer:")
    rows = [(without, []), *((PROMPT, [hit]) for hit in hits.of(0))]
    prompts = [
        PromptBuilder(prompt, model.tokenizer, room).build(asked, row, passages).prompts[0].tokens.tolist()
        for prompt, row in rows
    ]
    return prompts, [number for number, _ in hits.of(0)]


@pytest.mark.parametrize("question", QUESTIONS[1:])
def test_what_each_passage_gave_is_what_the_plain_loop_says(
    model: WritingModel, source: FromRetriever, question: str
) -> None:
    parts = Parts(reader=Ensemble(documents=2), mixer=UniformWeights())
    [answer] = Answerer(model, PROMPT, source, parts=parts, options=AnswerOptions(new_tokens=5)).answers([question])
    (without, *prompts), numbers = prompts_of(model, source, question, 2)
    assert len(numbers) == 2
    log_probs_KT = forced(model, prompts, answer)
    baseline_T = forced(model, [without], answer)[0]
    mixed_T = np.log(np.exp(log_probs_KT).mean(axis=0))
    posteriors_KT = np.exp(log_probs_KT) / np.exp(log_probs_KT).sum(axis=0)
    assert len(answer.answer.tokens) > 0
    assert answer.answer.log_prob == pytest.approx(mixed_T.sum(), abs=1e-3)
    np.testing.assert_allclose(answer.text.baseline_T, baseline_T, atol=1e-3)
    assert [one.passage.number for one in answer.sources] == numbers
    for one, posteriors_T in zip(answer.sources, posteriors_KT, strict=True):
        assert one.share == pytest.approx(posteriors_T.mean(), abs=1e-3)
        assert one.gain == pytest.approx((posteriors_T * (mixed_T - baseline_T)).sum(), abs=1e-2)
    assert sum(one.gain or 0 for one in answer.sources) == pytest.approx(answer.text.gain.nats, abs=1e-4)


def test_a_stream_is_the_same_answer(model: WritingModel, source: FromRetriever) -> None:
    answerer = Answerer(
        model, PROMPT, source, parts=Parts(reader=Ensemble(documents=2)), options=AnswerOptions(new_tokens=12)
    )
    together = list(answerer.answers(QUESTIONS))
    for question, whole in zip(QUESTIONS, together, strict=True):
        stream = answerer.stream(question)
        pieces = [piece.text for _, piece in stream]
        answer = stream.with_sources()
        assert "".join(pieces) == answer.answer.text == whole.answer.text
        assert "\n" not in answer.answer.text
        assert answer.answer.log_prob == pytest.approx(whole.answer.log_prob, abs=1e-3)
        assert len(pieces) > 1 or len(answer.answer.tokens) <= 1
        unread = answerer.stream(question).with_sources()  # draws what was not asked for
        assert unread.answer.text == whole.answer.text


def test_without_passages_there_are_no_sources(model: WritingModel) -> None:
    [answer] = Answerer(model, PROMPT, options=AnswerOptions(new_tokens=3)).answers(QUESTIONS[:1])
    assert not answer.sources
    assert answer.text.gain.nats == 0
    assert {"baseline_log_prob", "gain", "sources"}.isdisjoint(answer.as_json())


def test_answers_that_add_up_are_refused(model: WritingModel) -> None:
    with pytest.raises(UsageError, match="token by token"):
        Answerer(model, PROMPT, options=AnswerOptions(join="answers"))


def test_the_command_prints_an_answer_with_its_sources(index: Path) -> None:
    asked = ("--lm", "ralm-tiny", "--index", index, "--reader", "ensemble", "--documents", 2, "--new-tokens", 4)
    text = ralm("ask", QUESTIONS[1], *asked)
    assert text.status == 0, text.err
    found = json.loads(ralm("ask", QUESTIONS[1], *asked, "--json").out)
    assert text.out.startswith(found["answer"].lstrip())
    for rank, one in enumerate(found["sources"], 1):
        measured = one["known"] == "measured"
        assert f"{rank}. {one['evidence']}  {one['title']}" in text.out
        assert (one["share"] is None, one["gain"] is None) == (not measured, not measured)
        assert one["text"] in text.out
    tokens = len(found["tokens"])
    assert f"{found['log_prob'] / tokens:.2f} nats a token with passages, " in text.out
    assert f"{found['baseline_log_prob'] / tokens:.2f} without ({tokens} tokens)" in text.out
    assert found["gain"]["nats"] == pytest.approx(found["log_prob"] - found["baseline_log_prob"], abs=1e-4)
    assert ralm("ask", "-", *asked, stdin=QUESTIONS[1] + "\n").out == text.out


def test_a_file_of_questions(index: Path, tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps({"question": one}) + "\n" for one in QUESTIONS))
    asked = ("--lm", "ralm-tiny", "--index", index, "--new-tokens", 4)
    rows = [json.loads(line) for line in ralm("ask", "--questions", file, *asked, "--json").out.splitlines()]
    assert [row["question"] for row in rows] == QUESTIONS
    for row in rows:
        alone = json.loads(ralm("ask", row["question"], *asked, "--json").out)
        assert (alone["answer"], [one["passage"] for one in alone["sources"]]) == (
            row["answer"],
            [one["passage"] for one in row["sources"]],
        )
    text = ralm("ask", "--questions", file, *asked).out
    assert all(question in text for question in QUESTIONS)


def test_a_chat_model_is_asked_through_its_template(chat_model: Path) -> None:
    model = load_language_model(str(chat_model), ModelOptions(dtype="float32"))
    options = AnswerOptions(new_tokens=6, stop=())
    [expected] = Answerer(model, open_prompt("chat"), options=options).answers(["Who sings?"])
    found = json.loads(ralm("ask", "Who sings?", "--lm", chat_model, "--new-tokens", 6, "--json").out)
    assert found["answer"] == expected.answer.text
    other = json.loads(
        ralm("ask", "Who sings?", "--lm", chat_model, "--prompt", "replug", "--new-tokens", 6, "--json").out
    )
    assert other["tokens"] != found["tokens"]
    # a chat may be longer than a line: too long by default for a model of so few tokens
    failed(ralm("ask", "Who sings?", "--lm", chat_model), 2, "--new-tokens 256 leaves no room for a prompt")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 2, "give either a QUESTION or --questions FILE"),
        (("",), 2, "the question is empty"),
        (("Who?", "--prompt", "chat"), 1, "no chat template"),
        (("Who?", "--documents", "3"), 2, "read passages: give --index"),
        (("--questions", "absent.txt"), 1, "absent.txt"),
        (("word " * 2000,), 2, "fit into the model"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], status: int, said: str) -> None:
    failed(ralm("ask", *arguments, "--lm", "ralm-tiny"), status, said)


def test_a_file_with_an_empty_question(tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("Who?\n\nWhat?\n")
    failed(ralm("ask", "--questions", tmp_path / "q.txt", "--lm", "ralm-tiny"), 2, "question 2 is empty")

"""Prompts against the published ones, and prompts of one's own."""

import json
import re
from pathlib import Path

import pytest

from ralm.answering.prompts import PROMPTS, QuestionPrompt, open_prompt
from ralm.errors import QuestionFileError, UsageError
from ralm.records import Passage
from tests.shared_data import shared

PASSAGES = [Passage(0, "a", "T 1", "Text {question} one."), Passage(1, "b", "", "Text two.")]


def test_questions_are_normalised_as_published() -> None:
    prompt = open_prompt("in-context-ralm")
    functions = json.loads(shared("golden", "official_qa", "functions.json").read_text("utf-8"))
    assert len(functions["normalize_question"]) > 30
    for question, expected in functions["normalize_question"]:
        assert prompt.format_question(question) == expected


def test_prompts_are_the_published_ones() -> None:
    prompt = open_prompt("in-context-ralm")
    functions = json.loads(shared("golden", "official_qa", "functions.json").read_text("utf-8"))
    assert len(functions["build_qa_prompt"]) > 40
    for case in functions["build_qa_prompt"]:
        passages = [Passage(n, str(n), one["title"], one["text"]) for n, one in enumerate(case["ctxs"])]
        asked_for = case["docs"]
        several = None if asked_for == 0 else asked_for > 1
        assert str(prompt.text(case["question"], passages[:asked_for], several=several)) == case["prompt"]


def test_the_prompts_of_replug() -> None:
    prompt = open_prompt("replug")
    assert str(prompt.text("Who?", [])) == "Question: Who?\nAnswer:"
    one = prompt.text("Who?", PASSAGES[:1])
    assert (one.documents, one.question) == ("Knowledge: Text {question} one.", "\nQuestion: Who?\nAnswer:")
    assert (
        prompt.demonstration("Who?", "A {text}", PASSAGES[1:])
        == "Knowledge: Text two.\nQuestion: Who?\nAnswer: A {text}\n\n"
    )


def test_the_prompts_of_replug_for_choices() -> None:
    choices = ["{choice}", "two"]
    prompt = open_prompt("replug-choice")
    assert str(prompt.text("Who?", [], choices)) == "Question: Who?\nA. {choice} B. two\nAnswer:"
    one = prompt.text("Who?", PASSAGES[:1], choices)
    assert (one.documents, one.question) == (
        "Knowledge: Text {question} one.",
        "\nQuestion: Who?\nA. {choice} B. two\nAnswer:",
    )
    assert prompt.demonstration("Who?", "A", [], choices).endswith("\nAnswer: A\n\n")
    code = open_prompt("replug-choice-code")
    assert str(code.text("Who?", [], choices)) == "Question: Who?\n(A) {choice}\n(B) two\nAnswer:"
    with pytest.raises(UsageError, match="this prompt shows choices, and the question 'Who\\?' has none"):
        code.text("Who?", [])
    assert str(open_prompt("replug").text("Who?", [], choices)) == "Question: Who?\nAnswer:"


def test_a_prompt_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        'closed = "{question} ="\none = "[{documents}] {question} ="\nseveral = "[{documents}] {question} ="\n'
        'document = "{title}: {text}{note}"\nbetween = " | "\nanswer = "{answer}"\nafter = ";"\n'
    )
    prompt = open_prompt(path)
    assert str(prompt.text("Who", PASSAGES)) == "[T 1: Text {question} one.{note} | : Text two.{note}] Who ="
    assert prompt.demonstration("Who", "me", []) == "Who =me;"


def own(**changed: str) -> str:
    """A prompt that shows choices, with some of its texts changed."""
    texts = {
        "closed": "{question}{choices}",
        "one": "{documents}{question}{choices}",
        "several": "{documents}{question}{choices}",
        "document": "{text}",
        "between": " ",
    }
    return "".join(f"{name} = {json.dumps(text)}\n" for name, text in (texts | changed).items())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("closed = 3", "lacks between, document, one, several"),
        ("closed = ", "is not TOML"),
        ("close = 'x'", "has close; a prompt has closed"),
        ("closed='{question}'\none='{documents}'", "lacks between, document, several"),
        ("closed='{question}'\none='{documents}'\nseveral='x'\ndocument='x'\nbetween='x'", "one lacks {question}"),
        ("closed=1\none='x'\nseveral='x'\ndocument='x'\nbetween='x'", "closed is not a text in quotes"),
        (own(one="{documents}{question}"), "one lacks {choices}, which the other texts have"),
        (own(closed="{question}", one="{documents}{question}"), "closed lacks {choices}, which the other texts have"),
        (own(choice="{choice}"), "choice lacks {letter}"),
        (own(one="{question}{documents}{choices}"), "one has {question} before {documents}"),
        (own(several="{choices}{documents}{question}"), "several has {choices} before {documents}"),
        (
            own(
                closed="{question}",
                one="{documents}{question}",
                several="{documents}{question}",
                choice="{letter}{choice}",
            ),
            "choice has no effect, since closed, one and several lack {choices}",
        ),
    ],
)
def test_what_is_no_prompt(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(content)
    with pytest.raises(QuestionFileError) as raised:
        open_prompt(path)
    assert said in str(raised.value)


def test_an_unknown_name_and_form(tmp_path: Path) -> None:
    named = "in-context-ralm, replug, replug-choice, replug-choice-code, chat, chat-choice or a file"
    with pytest.raises(QuestionFileError, match=f"give {named}"):
        open_prompt("in-context")
    with pytest.raises(QuestionFileError, match="does not exist"):
        open_prompt(tmp_path / "none.toml")
    path = tmp_path / "own.toml"
    prompt = open_prompt(PROMPTS[1])
    texts = {name: getattr(prompt, name) for name in ("closed", "one", "several", "document", "between")}
    path.write_text("".join(f"{name} = {json.dumps(text)}\n" for name, text in texts.items()) + 'question = "upper"\n')
    with pytest.raises(QuestionFileError, match="question is 'upper'; it should be"):
        open_prompt(path)
    assert isinstance(prompt, QuestionPrompt)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("closed", "{documents} {question}", "closed has {documents}, which is never filled there"),
        ("document", "{text} {question}", "document has {question}"),
        ("one", "{documents} {documents} {question}", "one has {documents} twice"),
        ("chat", "yes", "chat is 'yes'; it should be true or false"),
    ],
)
def test_places_that_nothing_fills(tmp_path: Path, name: str, text: str, said: str) -> None:
    prompt = open_prompt(PROMPTS[1])
    texts = {one: getattr(prompt, one) for one in ("closed", "one", "several", "document", "between")} | {name: text}
    path = tmp_path / "own.toml"
    path.write_text("".join(f"{one} = {json.dumps(value)}\n" for one, value in texts.items()))
    with pytest.raises(QuestionFileError, match=re.escape(said)):
        open_prompt(path)

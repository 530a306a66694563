"""Prompts against the published ones, those of one's own, the tokens of cut prompts, and which prompt a model gets."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from transformers import PreTrainedTokenizerFast

from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import Cut, PromptEncoder, PromptText, chosen_prompt, open_prompt, tokens_after
from ralm.errors import InputError, UsageError
from ralm.lm.local.tokenization import ModelTokenizer
from ralm.lm.registry import load_tokenizer
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import Reader
from ralm.reading.readers import Ensemble, InContext
from ralm.records import IntArray, Passage, SpecialTokens
from tests.chat_models import save_chat_model
from tests.cli.program import ralm
from tests.shared_data import shared
from tests.tiny_models import byte_tokenizer
from tests.tiny_tokenizers import llama_tokenizer

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
        ("closed = '{question}'", "one: Field required; several: Field required; document: Field required"),
        ("closed = ", "is not TOML"),
        ("close = 'x'", "it has close; a prompt has closed"),
        ("closed='{question}'\none='{documents}'\nseveral='x'\ndocument='x'\nbetween='x'", "one lacks {question}"),
        ("closed=1\none='x'\nseveral='x'\ndocument='x'\nbetween='x'", "closed: Input should be a valid string"),
        (own(one="{documents}{question}"), "one lacks {choices}, which the other texts have"),
        (own(closed="{question}", one="{documents}{question}"), "closed lacks {choices}, which the other texts have"),
        (own(choice="{choice}"), "choice lacks {letter}"),
        (own(one="{question}{documents}{choices}"), "one has {question} before {documents}"),
        (own(several="{choices}{documents}{question}"), "several has {choices} before {documents}"),
        (own(closed="{documents} {question}"), "closed has {documents}, which is never filled there"),
        (own(document="{text} {question}"), "document has {question}"),
        (own(one="{documents} {documents} {question}"), "one has {documents} twice"),
        (own(system="Be brief."), "`system` has no effect without a chat"),
        (own(chat="yes"), "chat: Input should be a valid boolean"),
        (own(question="upper"), "question: Input should be 'as it is' or 'lower first letter, question mark'"),
    ],
)
def test_what_is_no_prompt(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(content)
    with pytest.raises(InputError) as raised:
        open_prompt(path)
    assert said in str(raised.value)


def test_an_unknown_name(tmp_path: Path) -> None:
    named = "in-context-ralm, replug, replug-choice, replug-choice-code, chat, chat-choice, numbered or a .toml file"
    with pytest.raises(InputError, match=f"give one of {named}"):
        open_prompt("in-context")
    with pytest.raises(InputError, match="does not exist"):
        open_prompt(tmp_path / "none.toml")


class Letters:
    """A token for each character, with a BOS."""

    special_tokens = SpecialTokens(before=np.array([1]), after=np.zeros(0, dtype=np.int64), begin=1)

    def encode(self, text: str) -> IntArray:
        return np.array([ord(letter) for letter in text], dtype=np.int64)

    def decode(self, tokens: IntArray) -> str:
        return "".join(map(chr, tokens.tolist()))


def text_of(tokens: IntArray) -> str:
    return "".join("^" if token == 1 else chr(token) for token in tokens.tolist())


PARTS = PromptText(documents="DOCUMENTS", question="question")


@pytest.mark.parametrize(
    ("room", "keep_first", "expected", "cut"),
    [
        (99, True, "^demoDOCUMENTSquestion", Cut()),
        (22, True, "^demoDOCUMENTSquestion", Cut()),
        (21, True, "^emoDOCUMENTSquestion", Cut(demonstrations=1)),
        (18, True, "^DOCUMENTSquestion", Cut(demonstrations=4)),
        (15, True, "^UMENTSquestion", Cut(demonstrations=4, documents=3)),
        (9, True, "^question", Cut(demonstrations=4, documents=9)),
        (22, False, "^demoDOCUMENTSquestion", Cut()),
        (21, False, "demoDOCUMENTSquestion", Cut(special=1)),
        (20, False, "emoDOCUMENTSquestion", Cut(demonstrations=1, special=1)),
        (8, False, "question", Cut(demonstrations=4, documents=9, special=1)),
    ],
)
def test_the_beginning_is_cut(room: int, keep_first: bool, expected: str, cut: Cut) -> None:
    encoded = PromptEncoder(Letters(), room, keep_first=keep_first).encode(PARTS, "demo")
    assert text_of(encoded.tokens) == expected
    assert encoded.cut == cut
    assert bool(encoded.cut) == (expected != "^demoDOCUMENTSquestion"), "a cut BOS counts, as in the official code"


@pytest.mark.parametrize(("room", "keep_first"), [(8, True), (7, False), (1, True), (0, True)])
def test_a_question_is_never_cut(room: int, keep_first: bool) -> None:
    with pytest.raises(UsageError, match="question 7 has 8 tokens .* only .* fit into the model beside the answer"):
        PromptEncoder(Letters(), room, keep_first=keep_first).encode(PARTS, "demo", name="question 7")


@given(st.text("ab", max_size=6), st.text("cd", max_size=6), st.text("ef", min_size=1, max_size=6), st.integers(0, 25))
def test_what_is_left_is_the_end(demonstrations: str, documents: str, question: str, room: int) -> None:
    encoder = PromptEncoder(Letters(), room)
    prompt = PromptText(documents=documents, question=question)
    if room < 1 + len(question):
        with pytest.raises(UsageError):
            encoder.encode(prompt, demonstrations)
        return
    encoded = encoder.encode(prompt, demonstrations)
    text = demonstrations + documents + question
    kept = text_of(encoded.tokens)[1:]
    assert text.endswith(kept)
    assert len(encoded.tokens) == min(room, 1 + len(text))
    dropped = len(text) - len(kept)
    assert encoded.cut == Cut(min(dropped, len(demonstrations)), max(0, dropped - len(demonstrations)))


@pytest.mark.parametrize("make", [llama_tokenizer, lambda: byte_tokenizer(with_bos=True)])
def test_an_answer_behind_a_prompt_has_the_tokens_of_the_whole_text(
    make: Callable[[], PreTrainedTokenizerFast],
) -> None:
    """SentencePiece begins a text of its own with a space, which does not stand behind a prompt."""
    tokenizer = ModelTokenizer(make())
    first = full_tokenizer(tokenizer).special_tokens.before
    for prompt, answer in (("question: who?\nanswer:", " the dog"), ("model:", "a"), ("a", "")):
        tokens = np.concatenate([first, tokenizer.encode(prompt)])
        behind = tokens_after(tokens, answer, tokenizer)
        assert [*tokens[len(first) :], *behind] == tokenizer.encode(prompt + answer).tolist()


@pytest.mark.parametrize("name", ["chat", "in-context-ralm", "replug", "numbered"])
@pytest.mark.parametrize("several", [False, True])
def test_only_the_passages_differ_in_prompts_of_the_same_words(name: str, several: bool) -> None:
    prompt = open_prompt(name)
    words = prompt.same_words(several=several, number=2)
    form = (prompt.several if several else prompt.one).replace("{question}", prompt.format_question("Who?"))
    assert str(words.text("Who?", ())) == form.replace("{documents}", "")
    document = prompt.document.replace("{number}", "2").replace("{title}", "T").replace("{text}", "x")
    assert str(words.text("Who?", [Passage(0, "a", "T", "x")])) == form.replace("{documents}", document)


CHAT, PLAIN = AnswerOptions(new_tokens=256, stop=()), AnswerOptions()


@pytest.mark.parametrize(
    ("lm", "prompt", "reader", "named", "name", "options"),
    [
        ("chat", None, Ensemble(), (), "chat", CHAT),
        ("chat", None, InContext(), ("new_tokens",), "chat", replace(CHAT, new_tokens=10)),
        ("chat", "replug", InContext(), (), "replug", PLAIN),
        ("plain", "chat", InContext(), (), "chat", CHAT),
        ("plain", None, InContext(), (), "in-context-ralm", PLAIN),
        ("plain", None, Ensemble(), (), "replug", PLAIN),
    ],
)
def test_the_prompt_and_the_length_follow_the_model(
    tmp_path: Path, lm: str, prompt: str | None, reader: Reader, named: tuple[str, ...], name: str, options: object
) -> None:
    tokenizer = Letters() if lm == "plain" else load_tokenizer(str(save_chat_model(tmp_path / "chat")))
    opened = None if prompt is None else open_prompt(prompt)
    chosen, drawn = chosen_prompt(opened, tokenizer, reader, PLAIN, named)
    assert (chosen.name, drawn) == (name, options)


def test_the_command_says_which_prompt_it_chose(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "Who sings?", "answers": ["whales"]}\n')
    asked = ("qa", tmp_path / "q.jsonl", "--lm", save_chat_model(tmp_path / "chat"))
    said = "asked with the prompt chat, as the model has a chat template; answers have at most 256 tokens"
    assert said in ralm(*asked).out
    assert (
        "asked with the prompt replug; answers have at most 9"
        in ralm(*asked, "--prompt", "replug", "--new-tokens", 9).out
    )

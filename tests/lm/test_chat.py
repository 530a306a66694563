"""Chats as token ids: those of the tokenizer's own template, spans in the message, and text that looks like markup."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from transformers import AddedToken, PreTrainedTokenizerFast

from ralm.errors import ChatError, ModelError
from ralm.lm.local.tokenization import ModelTokenizer
from ralm.lm.tokenizer import full_tokenizer, has_chat_template
from ralm.records import IntArray, Message
from tests.campaign import examples
from tests.chat_models import TEMPLATE as ROLES, chat
from tests.fakes import WordTokenizer
from tests.tiny_models import byte_tokenizer
from tests.tiny_tokenizers import llama_tokenizer

BARE = "{{ messages[0]['content'] }}{% if add_generation_prompt %}>{% endif %}"
MARKED = (
    "<s>{% for message in messages %}user:\n{{ message['content'] | trim }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}model: {% endif %}"
)
MAKERS: list[Callable[[], PreTrainedTokenizerFast]] = [lambda: byte_tokenizer(with_bos=True), llama_tokenizer]
WITHOUT_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + MARKED
WITHOUT_THOUGHTS = MARKED.replace("message['content']", "message['content'].split('</think>')[-1]")
WORDS = st.text("ab th.!\n", min_size=1, max_size=20).filter(str.strip)


def asked(message: str) -> list[Message]:
    return [Message("user", message)]


def with_template(make: Callable[[], PreTrainedTokenizerFast], template: str) -> PreTrainedTokenizerFast:
    tokenizer = make()
    tokenizer.chat_template = template
    return tokenizer


def encoded(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message]) -> tuple[IntArray, IntArray]:
    found = ModelTokenizer(tokenizer).encode_chat(messages)
    assert found is not None
    return found


def own_ids(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message]) -> list[int]:
    """What transformers itself makes of the chat."""
    return list(tokenizer.apply_chat_template([*map(asdict, messages)], add_generation_prompt=True, return_dict=False))


def test_spans_point_into_the_message() -> None:
    own = with_template(MAKERS[0], MARKED)
    tokenizer, message = ModelTokenizer(own), "  a bc "
    tokens, spans_N2 = encoded(own, asked(message))
    assert (np.diff(spans_N2.ravel()) >= 0).all()
    of_message = spans_N2[:, 1] > spans_N2[:, 0]
    assert "".join(message[begin:end] for begin, end in spans_N2[of_message]) == "a bc"
    assert tokenizer.decode(tokens[of_message]) == "a bc"
    before, after = (tokenizer.decode(tokens[spans_N2[:, 1] <= 2]), tokenizer.decode(tokens[spans_N2[:, 0] >= 6]))
    assert (before, after) == ("<s>user:\n", "</s>\nmodel: ")


@pytest.mark.parametrize(
    ("end", "found"),
    [("<turn|>\n", "<turn|>"), (" </s>", "</s>"), ("\n", None), ("", None), ("{{ raise_exception('no') }}", None)],
)
def test_the_token_that_ends_a_turn(end: str, found: str | None) -> None:
    """Gemma, Llama 3 and others end a turn with another token than a text."""
    own = byte_tokenizer(with_bos=True)
    own.add_special_tokens({"additional_special_tokens": ["<turn|>"]})
    own.chat_template = "<s>{% for message in messages %}{{ message['content'] }}" + end + "{% endfor %}"
    expected = None if found is None else own.convert_tokens_to_ids(found)
    assert ModelTokenizer(own).turn_end == expected


def test_a_template_that_writes_no_reply_ends_no_turn() -> None:
    assert ModelTokenizer(with_template(MAKERS[0], "<s>{{ messages[0]['content'] }}")).turn_end is None


def test_tokenizers_without_a_template() -> None:
    for tokenizer in (ModelTokenizer(MAKERS[0]()), WordTokenizer()):
        assert full_tokenizer(tokenizer).encode_chat(asked("a")) is None
        assert not has_chat_template(tokenizer)


def test_turns_marked_by_plain_added_tokens_cannot_be_forged() -> None:
    own = with_template(MAKERS[0], "<|user|>{{ messages[0]['content'] }}<|model|>")
    own.add_tokens([AddedToken("<|user|>", special=False), AddedToken("<|model|>", special=False)])
    message = "a <|model|> b <|user|>"
    tokens, spans_N2 = encoded(own, asked(message))
    for mark in ("<|user|>", "<|model|>"):
        assert tokens.tolist().count(own.convert_tokens_to_ids(mark)) == 1
    of_message = spans_N2[:, 1] > spans_N2[:, 0]
    assert "".join(message[begin:end] for begin, end in spans_N2[of_message]) == message


def test_what_is_passed_to_a_template_are_parameters_of_transformers() -> None:
    """Other keywords would go to the template as variables, which it ignores."""
    own, passed = with_template(MAKERS[0], MARKED), dict[str, Any]()
    known = inspect.signature(own.apply_chat_template).parameters
    written = own.apply_chat_template
    own.apply_chat_template = lambda *args, **how: passed.update(how) or written(*args, **how)
    ModelTokenizer(own).encode_chat(asked("who?"))
    ModelTokenizer(own).chat([{"role": "user", "content": "who?"}])
    assert "tokenize" in passed
    assert "continue_final_message" in passed
    assert passed.keys() <= known.keys()
    own.apply_chat_template = lambda *_, **__: [1, 2]
    with pytest.raises(ModelError, match=r"transformers 5\S+ returned a chat as list"):
        ModelTokenizer(own).encode_chat(asked("who?"))


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("template", [BARE, MARKED, ROLES])
@settings(max_examples=examples(30))
@given(contents=st.lists(WORDS, min_size=1, max_size=4), system=st.none() | WORDS)
def test_the_tokens_of_a_conversation_are_those_of_the_template(
    make: Callable[[], PreTrainedTokenizerFast], template: str, contents: list[str], system: str | None
) -> None:
    own = with_template(make, template)
    messages = asked(contents[0]) if template == BARE else chat(*contents, system=system)
    tokens, spans_N2 = encoded(own, messages)
    assert tokens.tolist() == own_ids(own, messages)
    if template == BARE:
        return  # a prefix space, which shares the span of the first letter, may begin the message
    content = [one.content for one in messages if one.role == "user"][-1]
    assert (np.diff(spans_N2.ravel()) >= 0).all()
    of_last = spans_N2[:, 1] > spans_N2[:, 0]
    assert content.strip() in "".join(content[begin:end] for begin, end in spans_N2[of_last])


def test_spans_point_into_the_last_message_of_the_user() -> None:
    own = with_template(MAKERS[0], MARKED)
    tokenizer = ModelTokenizer(own)
    tokens, spans_N2 = encoded(own, [*chat("abc", "abc", "abc", "abc"), Message("system", "abc")])
    before = tokenizer.decode(tokens[spans_N2[:, 1] == 0])
    after = tokenizer.decode(tokens[spans_N2[:, 0] == 3])
    assert (before.count("abc"), after.count("abc")) == (2, 2)
    assert len(tokens) == len(tokenizer.encode(before)) + 3 + len(tokenizer.encode(after))


@pytest.mark.parametrize("make", MAKERS)
@settings(max_examples=examples(16))
@given(places=st.sets(st.integers(0, 3)))
def test_markup_in_any_message_is_text(make: Callable[[], PreTrainedTokenizerFast], places: set[int]) -> None:
    own = with_template(make, ROLES)
    contents = ["a </s> <s>b" if place in places else "a b" for place in range(4)]
    messages = chat(*contents[1:], system=contents[0])
    tokens, spans_N2 = encoded(own, messages)
    counts = tokens.tolist().count(own.bos_token_id), tokens.tolist().count(own.eos_token_id)
    assert counts == (1, 3), "those of the template"
    assert contents[-1] in ModelTokenizer(own).decode(tokens)
    of_message = spans_N2[:, 1] > spans_N2[:, 0]
    assert own.eos_token_id not in tokens[of_message]
    assert spans_N2[of_message][-1].tolist() == [len(contents[-1]) - 1, len(contents[-1])]


def test_markup_across_the_edge_of_a_message_is_text() -> None:
    own = with_template(MAKERS[0], "<s>{{ messages[0]['content'] }}></s>")
    found = encoded(own, asked("a <s"))
    assert found[0].tolist().count(own.bos_token_id) == 1


def test_white_space_that_is_a_token_is_no_markup_and_an_empty_message_is_written() -> None:
    own = with_template(MAKERS[0], MARKED)
    own.add_tokens([AddedToken("    ", special=False, normalized=False)])
    for messages in (chat("a    b", "c", "d     e"), chat("a", "", "b    b", system="  ")):
        found = encoded(own, messages)
        assert found[0].tolist() == own_ids(own, messages)
        assert own.convert_tokens_to_ids("    ") in found[0]


@pytest.mark.parametrize("end", ["</think>", "<channel|>", "[/THINK]"])
def test_thoughts_that_a_template_leaves_out(end: str) -> None:
    own = with_template(MAKERS[0], WITHOUT_THOUGHTS.replace("</think>", end))
    messages = chat("a", f"let </s> me {end} b </s>", "c")
    found = encoded(own, messages)
    assert ModelTokenizer(own).decode(found[0]).split("user:\n")[2] == "b </s></s>\n"
    assert found[0].tolist().count(own.eos_token_id) == 3


@pytest.mark.parametrize(
    "said", ["<think>x</think>b", "<think>\nx </think> </think>\n\nb c", "b", "x</think>\nb <|u|>"]
)
def test_the_turn_after_thoughts_keeps_its_marks(said: str) -> None:
    template = (
        "{% for one in messages %}{% if one['role'] == 'user' %}<|u|>{{ one['content'] }}{% else %}"
        "<think>{{ one['content'].split('</think>')[-1].lstrip('\n') }}{% endif %}</s>{% endfor %}<think>"
    )
    own = with_template(MAKERS[0], template)
    own.add_tokens([AddedToken("<|u|>", special=True), AddedToken("<think>", special=True)])
    messages = chat("a", said, "c")
    found = encoded(own, messages)
    kept = said.split("</think>")[-1].lstrip("\n")
    assert ModelTokenizer(own).decode(found[0]) == f"<|u|>a</s><think>{kept}</s><|u|>c</s><think>"
    assert found[0].tolist().count(own.convert_tokens_to_ids("<|u|>")) == 2
    assert found[0].tolist().count(own.convert_tokens_to_ids("<think>")) == 2


@pytest.mark.parametrize(
    ("template", "messages", "said"),
    [
        ("{{ messages[0]['content'] | upper }}", chat("abc"), "changes the message 'abc'"),
        ("nothing", chat("abc"), r"leaves out the message 'abc' \(number 1, user\)"),
        (BARE + BARE, chat("abc"), "changes the message 'abc'"),
        (BARE + "{{ messages[0]['content'] | length }}", chat("abc"), "treats these messages in a special way"),
        ("{{ raise_exception('no user here') }}", chat("abc"), "this model rejects these messages: no user here"),
        ("{{ messages[0]['content'", chat("abc"), "the chat template of this model rejects these messages"),
        (ROLES, chat("a", "b", "c", "d")[1:], "rejects these messages: roles must alternate"),
        (WITHOUT_SYSTEM, chat("a", system="b"), "rejects these messages: no system"),
        (BARE, chat("a", "b b"), r"leaves out the message 'b b' \(number 2, assistant\): put it into a message of the"),
        (BARE, chat("a", "b")[1:], "no message of the user"),
        (BARE, [], "no message of the user"),
        (WITHOUT_THOUGHTS, chat("a </think> b"), "changes the message 'a </think> b'"),
    ],
)
def test_messages_that_a_template_rejects(template: str, messages: list[Message], said: str) -> None:
    with pytest.raises(ChatError, match=said):
        ModelTokenizer(with_template(MAKERS[0], template)).encode_chat(messages)

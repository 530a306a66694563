"""Chats as token ids: those of the tokenizer's own template, spans in the message, and text that looks like markup."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, strategies as st
from transformers import AddedToken, PreTrainedTokenizerFast

from ralm.errors import ModelError
from ralm.lm.local.tokenization import ModelTokenizer
from ralm.lm.tokenizer import full_tokenizer, has_chat_template
from tests.fakes import WordTokenizer
from tests.tiny_models import byte_tokenizer
from tests.tiny_tokenizers import llama_tokenizer

BARE = "{{ messages[0]['content'] }}{% if add_generation_prompt %}>{% endif %}"
MARKED = (
    "<s>{% for message in messages %}user:\n{{ message['content'] | trim }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}model: {% endif %}"
)
MAKERS: list[Callable[[], PreTrainedTokenizerFast]] = [lambda: byte_tokenizer(with_bos=True), llama_tokenizer]


def with_template(make: Callable[[], PreTrainedTokenizerFast], template: str) -> PreTrainedTokenizerFast:
    tokenizer = make()
    tokenizer.chat_template = template
    return tokenizer


def own_ids(tokenizer: PreTrainedTokenizerFast, message: str) -> list[int]:
    """What transformers itself makes of the chat."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("template", [BARE, MARKED])
@given(message=st.text("ab th.!\n", min_size=1, max_size=20).filter(str.strip))
def test_the_tokens_are_those_of_the_template(
    make: Callable[[], PreTrainedTokenizerFast], template: str, message: str
) -> None:
    own = with_template(make, template)
    found = ModelTokenizer(own).encode_chat(message)
    assert found is not None
    assert found[0].tolist() == own_ids(own, message)


def test_spans_point_into_the_message() -> None:
    tokenizer = ModelTokenizer(with_template(MAKERS[0], MARKED))
    message = "  a bc "
    found = tokenizer.encode_chat(message)
    assert found is not None
    tokens, spans_N2 = found
    assert (np.diff(spans_N2.ravel()) >= 0).all()
    of_message = spans_N2[:, 1] > spans_N2[:, 0]
    assert "".join(message[begin:end] for begin, end in spans_N2[of_message]) == "a bc"
    assert tokenizer.decode(tokens[of_message]) == "a bc"
    before, after = (tokenizer.decode(tokens[spans_N2[:, 1] <= 2]), tokenizer.decode(tokens[spans_N2[:, 0] >= 6]))
    assert (before, after) == ("<s>user:\n", "</s>\nmodel: ")


@pytest.mark.parametrize("make", MAKERS)
def test_markup_in_a_message_is_text(make: Callable[[], PreTrainedTokenizerFast]) -> None:
    own = with_template(make, MARKED)
    tokenizer = ModelTokenizer(own)
    message = "a </s> b"
    found = tokenizer.encode_chat(message)
    assert found is not None
    tokens, spans_N2 = found
    assert tokens.tolist().count(own.eos_token_id) == 1  # that of the template
    assert "a </s> b" in tokenizer.decode(tokens)
    of_message = spans_N2[:, 1] > spans_N2[:, 0]
    assert own.eos_token_id not in tokens[of_message]
    assert spans_N2[of_message][-1].tolist() == [len(message) - 1, len(message)]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ messages[0]['content'] | upper }}", "changes|leaves out"),
        ("nothing", "leaves out the user's message"),
        ("{{ messages[0]['content'] | replace('b', 'c') }}", "changes the message 'abc'"),
        ("{{ raise_exception('no user here') }}", "the chat template of this model fails: no user here"),
        ("{{ messages[0]['content'", "the chat template of this model fails"),
    ],
)
def test_a_template_that_cannot_be_used(template: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        ModelTokenizer(with_template(MAKERS[0], template)).encode_chat("abc")


def test_tokenizers_without_a_template() -> None:
    for tokenizer in (ModelTokenizer(MAKERS[0]()), WordTokenizer()):
        assert full_tokenizer(tokenizer).encode_chat("a") is None
        assert not has_chat_template(tokenizer)


def test_turns_marked_by_plain_added_tokens_cannot_be_forged() -> None:
    own = with_template(MAKERS[0], "<|user|>{{ messages[0]['content'] }}<|model|>")
    own.add_tokens([AddedToken("<|user|>", special=False), AddedToken("<|model|>", special=False)])
    tokenizer = ModelTokenizer(own)
    message = "a <|model|> b <|user|>"
    found = tokenizer.encode_chat(message)
    assert found is not None
    tokens, spans_N2 = found
    for mark in ("<|user|>", "<|model|>"):
        assert tokens.tolist().count(own.convert_tokens_to_ids(mark)) == 1
    of_message = spans_N2[:, 1] > spans_N2[:, 0]
    assert "".join(message[begin:end] for begin, end in spans_N2[of_message]) == message


def test_a_template_with_a_date_that_changes() -> None:
    own = with_template(MAKERS[0], "{{ today }}: {{ messages[0]['content'] }} model:")
    tokenizer = ModelTokenizer(own)
    written = own.apply_chat_template
    for today in ("Sunday", "Monday", "Tuesday"):
        own.apply_chat_template = lambda *args, today=today, **how: written(*args, **how, today=today)
        found = tokenizer.encode_chat("who?")
        assert found is not None
        assert tokenizer.decode(found[0]) == f"{today}: who? model:"

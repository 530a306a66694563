"""Prompts as tokens: special tokens, what is cut and in which order, and the question that is never cut."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, strategies as st
from transformers import PreTrainedTokenizerFast

from ralm.answering.prompts import Cut, PromptEncoder, PromptText, tokens_after
from ralm.errors import UsageError
from ralm.lm.local.tokenization import ModelTokenizer
from ralm.lm.tokenizer import full_tokenizer
from ralm.records import IntArray, SpecialTokens
from tests.tiny_models import byte_tokenizer
from tests.tiny_tokenizers import llama_tokenizer


class Letters:
    """A token for each character, with a BOS."""

    special_tokens = SpecialTokens(before=np.array([1]), after=np.zeros(0, dtype=np.int64), begin=1)

    def encode(self, text: str) -> IntArray:
        return np.array([ord(letter) for letter in text], dtype=np.int64)

    def decode(self, tokens: IntArray) -> str:
        return "".join(map(chr, tokens.tolist()))


def text_of(tokens: IntArray) -> str:
    return "".join("^" if token == 1 else chr(token) for token in tokens.tolist())


PROMPT = PromptText(documents="DOCUMENTS", question="question")


@pytest.mark.parametrize(
    ("room", "keep_first", "expected", "cut"),
    [
        (99, True, "^demoDOCUMENTSquestion", Cut()),
        (22, True, "^demoDOCUMENTSquestion", Cut()),
        (21, True, "^emoDOCUMENTSquestion", Cut(demonstrations=1)),
        (18, True, "^DOCUMENTSquestion", Cut(demonstrations=4)),
        (15, True, "^UMENTSquestion", Cut(demonstrations=4, documents=3)),
        (9, True, "^question", Cut(demonstrations=4, documents=9)),
        (21, False, "demoDOCUMENTSquestion", Cut()),
        (20, False, "emoDOCUMENTSquestion", Cut(demonstrations=1)),
        (8, False, "question", Cut(demonstrations=4, documents=9)),
    ],
)
def test_the_beginning_is_cut(room: int, keep_first: bool, expected: str, cut: Cut) -> None:
    encoded = PromptEncoder(Letters(), room, keep_first=keep_first).encode(PROMPT, "demo")
    assert text_of(encoded.tokens) == expected
    assert encoded.cut == cut
    assert bool(encoded.cut) == (expected.removeprefix("^") != "demoDOCUMENTSquestion")


@pytest.mark.parametrize(("room", "keep_first"), [(8, True), (7, False), (1, True), (0, True)])
def test_a_question_is_never_cut(room: int, keep_first: bool) -> None:
    with pytest.raises(UsageError, match="question 7 has 8 tokens .* only .* fit into the model beside the answer"):
        PromptEncoder(Letters(), room, keep_first=keep_first).encode(PROMPT, "demo", name="question 7")


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

"""Filters: what is read, in its normal form, and what is refused."""

import threading

import pytest

from ralm.errors import UsageError
from ralm.retrieval.filters import parse_filter


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("year>=2020 and\nlang in ['en',\"de\"]", "year >= 2020 and lang in ['en', 'de']"),
        ("(2000 <= year < 2010)", "2000 <= year < 2010"),
        ("not draft == true or document_id != -3", "not draft == true or document_id != -3"),
        ('"x" not in author.name and metadata["a b"] is None', "'x' not in author.name and metadata['a b'] is None"),
        ("title.startswith('it\\'s (')", 'title.startswith("it\'s (")'),
    ],
)
def test_equal_filters_have_one_normal_form(text: str, normal: str) -> None:
    assert parse_filter(text).text == normal == parse_filter(normal).text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the filter is empty"),
        ("lang = 'en'", r"\(invalid syntax.*\): lang \[HERE\]= 'en'; write it as `year >= 2020"),
        ("exists year", r"\(invalid syntax\): exists \[HERE\]year"),
        ("lang == en", r'at `en`: one side of a comparison is a key, and a text stands in quotes: "en"'),
        ("1 == 2", "at `2`: one side of a comparison is a key"),
        ("lang in ('en')", "at `'en'`: the values after `in` stand in parentheses, each with a comma"),
        ("(a == 1", r"'\(' was never closed"),
        ("a == 'x", r"no part of a filter.*: a == \[HERE\]'x;"),
        ("draft", r"at `draft`: compare a key with a value, such as `year >= 2020`"),
        ("len(title) == 3", r"at `len\(title\)`|one side of a comparison is a key"),
        ("a == b'x'", "is compared with a number, a text in quotes, True or False; a missing one by `is None`"),
        ("a < True", "True and False are compared by == or !="),
        ("a is 3", "`is` takes None"),
        ("a == 1e999", "a number is finite"),
        ("a == 1 if b else 2", r"no part of a filter.*: a == 1 \[HERE\]if"),
        (f"a == '{'x' * 70_000}'", "over 65,536 bytes"),
        (" or ".join(["a == 1"] * 201), "over 200 comparisons: list values as"),
        ("a == '\ud800'", "no valid text"),
    ],
)
def test_what_cannot_be_read_is_one_sentence_with_the_place(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_filter(text)


@pytest.mark.parametrize(
    "text",
    ["not " * 16_000 + "a == 1", "-" * 60_000 + "1", "(" * 500 + "a", "a" + ".b" * 30_000, "1+" * 20_000, "a[" * 9_000],
)
def test_deep_filters_are_refused_on_a_small_stack(text: str) -> None:
    messages = []

    def read() -> None:
        with pytest.raises(UsageError) as raised:
            parse_filter(text)
        messages.append(str(raised.value))

    before = threading.stack_size(256 << 10)
    try:
        reader = threading.Thread(target=read)
        reader.start()
    finally:
        threading.stack_size(before)
    reader.join()
    assert "the filter cannot be read" in messages[0]
    assert len(messages[0]) < 300

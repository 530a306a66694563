"""Filters: expressions and their normal form."""

from typing import Final

import pytest
from hypothesis import given, strategies as st

from ralm.errors import UsageError
from ralm.retrieval.filters import Filter, compare, join, negate, parse_filter

KEYS: Final = st.sampled_from(["year", "lang", "tags", "author.name", "exists", 'a "key"'])
TEXTS: Final = st.sampled_from(["en", "de", "de x", "", "2020", "true", "null", "it's", 'a "b"\\', "é\n"])
NUMBERS: Final = st.sampled_from([0, -1.5, 2020, 1e300]) | st.floats(allow_nan=False, allow_infinity=False)


def one_filter() -> st.SearchStrategy[Filter]:
    """Any comparison."""
    values = TEXTS | NUMBERS
    orders = st.builds(
        lambda key, sign, value: compare(key, sign, [value]), KEYS, st.sampled_from("< <= > >=".split()), values
    )
    sets = st.builds(compare, KEYS, st.sampled_from(["in", "not in"]), st.lists(values | st.booleans(), min_size=1))
    return orders | sets | st.builds(lambda key: compare(key, "exists", ()), KEYS)


FILTERS: Final = st.recursive(
    one_filter(),
    lambda parts: (
        st.builds(negate, parts)
        | st.builds(join, st.sampled_from(["and", "or"]), st.lists(parts, min_size=1, max_size=4))
    ),
)


@given(FILTERS)
def test_a_filter_is_read_as_it_was_written(found: Filter) -> None:
    assert parse_filter(str(found)) == found


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("year>=2020 AND lang in ('en', de)", "lang in (de, en) and (year >= 2020.0)"),
        ("a = 1 or b = 2 and c = 3", "c = 3 and b = 2 or a == 1 or a = 1"),
        ("a != 1", "not a = 1"),
        ("a not in (1, 2)", "not not not a in (2, 1, 2)"),
        ("tags exists", "exists tags"),
        ("document_id = x", 'id = "x"'),
        ("date < 2020-01-31", "date < '2020-01-31'"),
        ('"publication year" = true', "'publication year' = TRUE"),
    ],
)
def test_equal_filters_have_one_normal_form(text: str, same: str) -> None:
    assert str(parse_filter(text)) == str(parse_filter(same))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the filter is empty"),
        ("year >= and x = 1", r"expected a value at \[HERE\]: year >= \[HERE\]and x = 1$"),
        ("year ! 3", r"expected `!=` at \[HERE\]: year \[HERE\]! 3$"),
        ("(a = 1", r"expected `\)` at \[HERE\]: \(a = 1\[HERE\]$"),
        ("a = 1 b = 2", r"expected `and`, `or` or the end at \[HERE\]: a = 1 \[HERE\]b = 2$"),
        ("a in (1, 2", r"expected `\)` at \[HERE\]: a in \(1, 2\[HERE\]$"),
        ("a = 'x", r"the closing quote of this text at \[HERE\]: a = \[HERE\]'x$"),
        ("x" * 500 + " = 1 and", r"expected a key at \[HERE\]: \.\.\.x+ = 1 and\[HERE\]$"),
        ("a = null", "`not exists KEY`"),
        ("a < true", "a < true: compare it by = or !="),
        ("a = 1e999", "not finite"),
        (f"a = {'x' * 600}", "over 511 bytes"),
        ("not " * 1000 + "a = 1", "expected at most 100 nested parts"),
    ],
)
def test_what_cannot_be_read_is_one_error_with_the_place(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_filter(text)

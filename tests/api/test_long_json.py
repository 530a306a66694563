"""JSON of answers: the same as Python's reader and writer, also where pydantic refuses."""

import json
import math
import struct

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.lm.api.transport import read_json, write_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
)


@given(JSON)
def test_what_is_written_is_read(value: object) -> None:
    assert read_json(write_json(value)) == value
    assert read_json(json.dumps(value)) == value


def test_numbers_are_read_to_the_last_bit() -> None:
    drawn = np.random.default_rng(0).bytes(8 * 20_000)
    values = [value for (value,) in struct.iter_unpack("<d", drawn) if math.isfinite(value)]
    digits = [f"-{value % 50:.30f}" for value in values if 0 < value < 1e9]
    assert read_json(json.dumps(values)) == values
    assert read_json(f"[{','.join(digits)}]") == [float(text) for text in digits]
    assert read_json(write_json(values)) == values


@pytest.mark.parametrize("text", ['"\\ud83d"', '{"a": "\\udc9c"}', "[" * 500 + "]" * 500])
def test_half_a_character_and_deep_nesting_are_read_and_written(text: str) -> None:
    value = json.loads(text)
    assert read_json(text) == value
    assert read_json(write_json(value)) == value


def test_not_a_number_and_infinity_are_kept() -> None:
    found = read_json(write_json([math.nan, math.inf, -math.inf]))
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf]


@pytest.mark.parametrize("text", ["", "<html>", '{"a": 1', "{'a': 1}", "[1,]"])
def test_what_is_no_json_raises(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        read_json(text)


def test_nesting_without_end_raises() -> None:
    with pytest.raises((ValueError, RecursionError)):
        read_json("[" * 200_000)

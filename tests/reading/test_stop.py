"""Stop strings, wherever pieces of text begin and end."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, strategies as st

from ralm.reading.pieces import GeneratedText, GeneratedToken, StoppedText
from tests.fakes import WordTokenizer


def stopped_text(stop: Sequence[str]) -> StoppedText:
    return StoppedText(np.zeros(0, dtype=np.int64), WordTokenizer(), stop)


def until_stop(pieces: Sequence[GeneratedText], stop: Sequence[str]) -> list[GeneratedText]:
    """All that is handed on, the pieces given one by one."""
    until = stopped_text(stop)
    certain = [part for piece in pieces for part in until.add_pieces([piece])]
    return certain + until.rest()


def token(number: int) -> GeneratedToken:
    return GeneratedToken(number, -1.0, np.array([3]), np.ones(1, dtype=np.float32))


@given(
    pieces=st.lists(st.text("ab|", max_size=3), max_size=12),
    stop=st.lists(st.text("ab|", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_cut_the_whole_text_however_it_was_pieced(pieces: list[str], stop: list[str]) -> None:
    whole = "".join(pieces)
    ends = [whole.index(string) for string in stop if string in whole]
    # a stop string is found in the first piece that completes one, so the earliest completed is what counts
    completed = [whole.index(string) + len(string) for string in stop if string in whole]
    out = until_stop([GeneratedText(text=piece, passage=0) for piece in pieces], stop)
    text = "".join(piece.text for piece in out)
    assert whole.startswith(text)
    if not ends:
        assert text == whole
    else:
        assert all(string not in text for string in stop)
        assert len(text) <= min(completed)


def test_stop_string_across_pieces_keeps_sources() -> None:
    pieces = [GeneratedText("one ", 3), GeneratedText("two\n", 4), GeneratedText("\nthree", 5)]
    assert until_stop(pieces, ["\n\n"]) == [GeneratedText("one ", 3), GeneratedText("two", 4)]


def test_a_token_stays_with_the_text_it_begins() -> None:
    first, second, third = token(1), token(2), token(3)
    pieces = [GeneratedText("a.", 3, (first,)), GeneratedText(".b", 3, (second,)), GeneratedText(".", 3, (third,))]
    out = until_stop(pieces, ["..."])
    assert [(piece.text, piece.tokens) for piece in out] == [
        ("a", (first,)),
        (".", ()),
        (".b", (second,)),
        (".", (third,)),
    ]
    out = until_stop(pieces, [".."])
    assert [(piece.text, piece.tokens) for piece in out] == [("a", (first,))]


def test_nothing_is_handed_on_after_a_stop_string() -> None:
    until = stopped_text(["x"])
    assert until.add_pieces([GeneratedText("ax", 0), GeneratedText("b", 0)]) == [GeneratedText("a", 0)]
    assert until.found
    assert until.add_pieces([GeneratedText("c", 0)]) == until.rest() == []

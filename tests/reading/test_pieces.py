"""Generated tokens as text: characters of several tokens, stop strings, and the shares of passages."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import given, strategies as st

from ralm.lm.local.tokenization import load_model_tokenizer
from ralm.reading.pieces import GeneratedText, GeneratedToken, StoppedText, passage_shares, spans
from tests.fakes import WordTokenizer


def token(number: int, posteriors: dict[int, float]) -> GeneratedToken:
    passages, given = np.array(list(posteriors)), np.array(list(posteriors.values()), dtype=np.float32)
    return GeneratedToken(number, -1.0, passages, given)


def test_a_character_comes_with_its_last_byte(tiny_folders: dict[str, Path]) -> None:
    tokenizer = load_model_tokenizer(str(tiny_folders["gpt2"]))
    tokens = [token(number, {3: 1.0}) for number in tokenizer.encode("aé€").tolist()]
    assert len(tokens) == 6, "a token a byte"
    pieces = StoppedText(tokenizer.encode("before"), tokenizer)
    found = [piece for one in tokens[:-1] for piece in pieces.add(one)]
    assert [(piece.text, len(piece.tokens)) for piece in found] == [("a", 1), ("é", 2)]
    assert [piece.text for piece in pieces.add(tokens[-1])] == ["€"]
    assert pieces.rest() == []
    pieces.add(tokens[-3])
    assert [(piece.text, piece.tokens) for piece in pieces.rest()] == [("\N{REPLACEMENT CHARACTER}", (tokens[-3],))]


def test_what_passages_gave() -> None:
    one, two = token(5, {3: 0.75, 4: 0.25}), token(6, {4: 0.5, 7: 0.5})
    assert one.passage == 3
    assert list(passage_shares([one, two]).items()) == [(3, 0.375), (4, 0.375), (7, 0.25)]
    pieces = [GeneratedText("a", 3, (one,)), GeneratedText("b", 3, (one, two)), GeneratedText("c", 4, (two,))]
    joined = list(spans(pieces))
    assert [(span.text, span.passage, span.tokens) for span in joined] == [("ab", 3, (one, one, two)), ("c", 4, (two,))]


def until_stop(pieces: Sequence[GeneratedText], stop: Sequence[str]) -> list[GeneratedText]:
    """All that is handed on, the pieces given one by one; nothing after a stop string."""
    until = StoppedText(np.zeros(0, dtype=np.int64), WordTokenizer(), stop)
    certain = [part for piece in pieces for part in until.add_pieces([piece])]
    rest = until.rest()
    assert not until.found or until.add_pieces([GeneratedText("c", 0)]) == until.rest() == []
    return certain + rest


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
    first, second, third = (token(number, {3: 1.0}) for number in (1, 2, 3))
    pieces = [GeneratedText("a.", 3, (first,)), GeneratedText(".b", 3, (second,)), GeneratedText(".", 3, (third,))]
    out = until_stop(pieces, ["..."])
    expected = [("a", (first,)), (".", ()), (".b", (second,)), (".", (third,))]
    assert [(piece.text, piece.tokens) for piece in out] == expected
    out = until_stop(pieces, [".."])
    assert [(piece.text, piece.tokens) for piece in out] == [("a", (first,))]

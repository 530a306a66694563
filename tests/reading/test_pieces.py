"""Tokens as text, and what passages gave of them."""

from pathlib import Path

import numpy as np

from ralm.lm.local.tokenization import load_model_tokenizer
from ralm.reading.pieces import GeneratedText, GeneratedToken, Pieces, passage_shares, spans


def token(number: int, posteriors: dict[int, float]) -> GeneratedToken:
    passages, given = np.array(list(posteriors)), np.array(list(posteriors.values()), dtype=np.float32)
    return GeneratedToken(number, -1.0, passages, given)


def test_a_character_comes_with_its_last_byte(tiny_folders: dict[str, Path]) -> None:
    tokenizer = load_model_tokenizer(str(tiny_folders["gpt2"]))
    tokens = [token(number, {3: 1.0}) for number in tokenizer.encode("aé€").tolist()]
    assert len(tokens) == 6, "a token a byte"
    pieces = Pieces(tokenizer.encode("before"), tokenizer)
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

"""Tokenizes a long text in pieces: exactly the tokens of the whole text, in bounded memory.

A piece ends at a *cut*: a place beside a space, a line end or a sign at which the tokenizer treats what is before and
after independently. Two windows of the text overlap around each cut:

    first window   [ begin ......................... cut ....... checked ]
    next window                      [ begin ....... cut ....... checked ............ ]

The first gives the tokens before the cut, the next one those after it. A cut needs three things:

1. In both windows a token ends there, and `Cuts.separate` says that no later stage of the tokenizer can join the sides.
2. Both windows have the same tokens, with the same spans, from the cut up to `checked`.
3. On each side of the cut the windows go on for at least `overlap` characters, up to another place of the same kind. So
   what a window adds or loses at its own ends (a prefix space, half of a word, half of a character) is not at the cut.

By induction over the cuts, the pieces are the whole, if what the tokenizer does at a place depends only on the words
around it, no more than `overlap` characters away. `Cuts` says for which tokenizers this holds. A window without such a
cut grows, in the worst case to the whole text. That costs memory, but the tokens are the same.

A fast tokenizer works in four stages. At a cut, each stage is independent of the other side:

- *Added tokens* are searched for first, from the left. None may reach over the cut: the texts of a tokenizer with an
  added token that has white space inside are not cut at all, and a place next to an added token, which may take the
  space with it, is not a cut.
- *Normalisation* works on characters, on characters with their combining marks, or on runs of spaces. What it adds or
  removes at the ends of a text happens at the ends of a window, not at the cut.
- *Pre-tokenisation* works from the left on runs of letters, digits, signs and spaces. A pattern may also look at the
  characters around a match. The patterns of published language models look no further than the words beside a place,
  and this is assumed: a pattern that looks further than the overlap of two windows would not be noticed.
- *The model* works on one pre-token at a time, so the sides are independent if a new pre-token begins at the cut. If
  the whole text is one pre-token, as in LLaMA, they are independent for BPE if no token of the vocabulary holds the two
  characters beside the cut together: then no merge can join the sides. A Unigram model compares sums over the whole
  pre-token, and their rounding depends on what is before: there is no cut inside.

Texts are not cut if a stage is of another kind, such as pre-tokens of fixed length, or if BPE has dropout.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ralm.records import EncodedPiece, IntArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LOG: Final = logging.getLogger(__name__)

_SIGNS: Final = "\u3001\u3002\uff0c\uff0e\uff1a\uff1b\uff01\uff1f"
_CANDIDATES: Final = re.compile(rf"(?<=[^\W_])(?=[ \n{_SIGNS}][^\W_])|(?<=\S\n)(?=[^\W_])")
"""Places between a letter or digit and a single space, line end or Chinese or Japanese sign before another one; and
between a line end and a letter or digit. No normalisation and no run of spaces crosses such a place."""
_MAX_TRIES: Final = 64
_CHUNK: Final = 1 << 20

_LOCAL_STAGES: Final = frozenset(
    "BertNormalizer ByteLevel Lowercase NFC NFD NFKC NFKD Nmt Precompiled Prepend Replace Strip StripAccents "
    "BertPreTokenizer CharDelimiterSplit Digits Metaspace Punctuation Split UnicodeScripts Whitespace "
    "WhitespaceSplit Removed".split()
)
"""Kinds of normalisation and pre-tokenisation that treat the two sides of a cut independently."""
_MODELS: Final = ("BPE", "Unigram", "WordLevel", "WordPiece")
_SPACES: Final = " \n\u2581\u0120\u010a"
"""A space and a line end as they are, as SentencePiece writes a space, and as byte-level BPE writes both."""
_SPACE_INSIDE: Final = re.compile(rf"[^\s{_SPACES}][\s{_SPACES}]+[^\s{_SPACES}]")

_KEEPING_STAGES: Final = frozenset("ByteLevel Digits Punctuation Split".split())
"""Kinds of pre-tokenisation that keep every character, except `Removed` ones."""
_PRINTED: Final = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTES: Final = {*map(chr, _PRINTED), *map(chr, range(0x100, 0x200 - len(_PRINTED)))}
"""The names of single bytes: a character that can be printed stands for itself, the others are numbered from U+0100."""


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A part of a text with its tokens (int64, N), their spans (int64, N x 2), and the number of the pre-token of each
    token (`word_of`)."""

    text: str
    tokens: IntArray
    spans_N2: IntArray
    word_of: Callable[[int], int | None]

    def before(self, place: int) -> int:
        """The number of tokens that begin before a character."""
        return int(np.count_nonzero(self.spans_N2[:, 0] < place))


Separate = Callable[[Window, int], bool]
"""Whether the tokens on the two sides of a place, which no token crosses, are independent of each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSizes:
    """Lengths in characters: the first window, the longest one (windows double up to it, so that a few tokens cost a
    short one), and how far windows reach beyond a cut on each side."""

    first: int = 1 << 14
    longest: int = 1 << 18
    overlap: int = 256


_SIZES: Final = WindowSizes()


@dataclass(frozen=True, slots=True)
class _Cut:
    """Characters of a window: where the next window begins, the cut, and up to where the two must agree."""

    begin: int
    place: int
    checked: int


def encode_in_pieces(
    chunks: Iterable[str], encode: Callable[[str], Window], separate: Separate, sizes: WindowSizes = _SIZES
) -> Iterator[EncodedPiece]:
    """The pieces of the text that the chunks make up; as few chunks are read as the pieces need."""
    text = _ChunkedText(chunks)
    window, begin, done = encode(text.read(sizes.first)), 0, 0
    while text.read(1, after=len(window.text)):
        cut = _find_cut(window, done, separate, sizes.overlap)
        if cut is not None:
            size = len(window.text) - cut.begin + min(2 * len(window.text), sizes.longest)
            following = encode(text.read(size, after=cut.begin))
            if _agree(window, following, cut, separate):
                yield _piece(window, done, cut.place, begin)
                text.drop(cut.begin)
                window, begin, done = following, begin + cut.begin, cut.place - cut.begin
                continue
        if len(window.text) >= sizes.longest:
            _LOG.info("no place to cut the text: %s characters are tokenised at once", f"{2 * len(window.text):,}")
        window = encode(text.read(2 * len(window.text)))
    yield _piece(window, done, len(window.text), begin)


def text_chunks(text: str) -> Iterator[str]:
    """A text in chunks, as `encode_in_pieces` reads it."""
    return (text[begin : begin + _CHUNK] for begin in range(0, len(text), _CHUNK))


def pieces_of_tokens(pieces: Iterable[EncodedPiece], limit: int | None) -> Iterator[EncodedPiece]:
    """The pieces up to the one with the first token beyond `limit`; all pieces without a limit."""
    count = 0
    for piece in pieces:
        yield piece
        count += len(piece.tokens)
        if limit is not None and count > limit:
            return


def join_pieces(pieces: Iterable[EncodedPiece]) -> tuple[IntArray, IntArray]:
    """The tokens (int64, N) and spans (int64, N x 2) of consecutive pieces."""
    arrays = [(piece.tokens, piece.spans_N2) for piece in pieces]
    none = (np.zeros(0, dtype=np.int64), np.zeros((0, 2), dtype=np.int64))
    tokens, spans = zip(none, *arrays, strict=True)
    return np.concatenate(tokens), np.concatenate(spans)


class _ChunkedText:
    """The text of some chunks, from the beginning of the current window on, read as far as it is needed."""

    def __init__(self, chunks: Iterable[str]) -> None:
        self._chunks = iter(chunks)
        self._text = ""

    def read(self, size: int, after: int = 0) -> str:
        parts, length = [self._text], len(self._text)
        while length < after + size and (chunk := next(self._chunks, None)) is not None:
            parts.append(chunk)
            length += len(chunk)
        self._text = "".join(parts)
        return self._text[after : after + size]

    def drop(self, size: int) -> None:
        self._text = self._text[size:]


def _find_cut(window: Window, done: int, separate: Separate, overlap: int) -> _Cut | None:
    """The last cut of a window after the first `done` characters; None if there is none."""
    places = [found.start() for found in _CANDIDATES.finditer(window.text)]
    if not places:
        return None
    checked = places[-1]
    tried = [place for place in places if done < place <= checked - overlap][-_MAX_TRIES:]
    for place in reversed(tried):
        begin = max((other for other in places if other <= place - overlap), default=0)
        if begin <= place - overlap and _is_cut(window, place, separate):
            return _Cut(begin, place, checked)
    return None


def _is_cut(window: Window, place: int, separate: Separate) -> bool:
    """Whether each token lies on one side of a place, with tokens on both sides in the order of the text, and the sides
    are separate."""
    at, spans_N2 = window.before(place), window.spans_N2
    if not 0 < at < len(spans_N2) or not spans_N2[:at, 1].max() <= place <= spans_N2[at:, 0].min():
        return False
    return separate(window, place)


def _agree(window: Window, following: Window, cut: _Cut, separate: Separate) -> bool:
    """Whether both windows can be cut there and have the same tokens from there up to the place that is checked."""
    if not _is_cut(following, cut.place - cut.begin, separate):
        return False
    here = slice(window.before(cut.place), window.before(cut.checked))
    there = slice(following.before(cut.place - cut.begin), following.before(cut.checked - cut.begin))
    return np.array_equal(window.tokens[here], following.tokens[there]) and np.array_equal(
        window.spans_N2[here], following.spans_N2[there] + cut.begin
    )


def _piece(window: Window, begin: int, end: int, offset: int) -> EncodedPiece:
    first = window.before(begin) if begin else 0
    last = window.before(end) if end < len(window.text) else len(window.tokens)
    spans_N2 = window.spans_N2[first:last] + offset
    return EncodedPiece(text=window.text[begin:end], tokens=window.tokens[first:last], spans_N2=spans_N2)


class Cuts:
    """The places at which the texts of a tokenizer can be cut."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer

    @cached_property
    def exist(self) -> bool:
        """Whether all stages of the tokenizer are of a kind that can be cut."""
        if not self._tokenizer.is_fast:
            return False
        backend = self._tokenizer.backend_tokenizer
        kinds = {kind for stage in (backend.normalizer, backend.pre_tokenizer) for kind in stage_kinds(stage)}
        # an added token may be looked for as it is or normalised
        normalized = str if backend.normalizer is None else backend.normalizer.normalize_str
        forms = (form for token in self._added.values() for form in (token.content, normalized(token.content)))
        return (
            kinds <= _LOCAL_STAGES
            and type(backend.model).__name__ in _MODELS
            and not getattr(backend.model, "dropout", None)
            and not any(_SPACE_INSIDE.search(form) for form in forms)
        )

    def separate(self, window: Window, place: int) -> bool:
        """Whether the tokens on the two sides of a place, which no token crosses, are independent of each other."""
        at = window.before(place)
        before, after = window.tokens[at - 1 : at + 1].tolist()
        if before in self._added or after in self._added:
            return False
        return window.word_of(at - 1) != window.word_of(at) or self._never_joined(before, after, window.text[place])

    @cached_property
    def _added(self) -> dict[int, Any]:
        return dict(self._tokenizer.added_tokens_decoder)

    def _never_joined(self, before: int, after: int, character: str) -> bool:
        """Whether BPE never merges the last character of a token with the first of another, which is `character` or
        stands for a space."""
        model = self._tokenizer.backend_tokenizer.model
        if type(model).__name__ != "BPE" or model.end_of_word_suffix or model.continuing_subword_prefix:
            return False
        left, right = self._tokenizer.convert_ids_to_tokens([before, after])
        is_text = left != model.unk_token and left[-1].isalnum() and right[0] in _SPACES + character
        return is_text and left[-1] + right[0] not in self._vocabulary

    @cached_property
    def _vocabulary(self) -> str:
        """All tokens in one string, separated by a character that is in no pair."""
        return "\0".join(self._tokenizer.get_vocab())


def stage_kinds(stage: Any) -> Iterator[str]:
    """The kinds of the parts of a stage of a fast tokenizer; an empty name for a part that is written in Python, and
    `Removed` beside the kind of a part that removes the text it splits at."""
    if stage is None:
        return
    try:
        state = stage.__getstate__()
    except Exception as error:
        if "Custom" not in str(error):  # the message of the library for parts that are written in Python
            raise
        yield ""
    else:
        yield from _kinds_of(json.loads(state))


def _kinds_of(state: dict[str, Any]) -> Iterator[str]:
    if state["type"] != "Sequence":
        yield state["type"]
    if state.get("behavior") == "Removed":
        yield "Removed"
    for inner in state.get("normalizers") or state.get("pretokenizers") or ():
        yield from _kinds_of(inner)


def longest_token(tokenizer: "PreTrainedTokenizerBase") -> int | None:
    """The maximum number of bytes of a text (UTF-8) that one token stands for. It is known only of byte-level BPE that
    leaves out and changes nothing, in which a token is as many bytes as its name has characters; else None."""
    if not tokenizer.is_fast:
        return None
    backend, vocabulary, added = tokenizer.backend_tokenizer, tokenizer.get_vocab(), tokenizer.added_tokens_decoder
    kinds, model = set(stage_kinds(backend.pre_tokenizer)), backend.model
    keeps_bytes = (
        backend.normalizer is None
        and "ByteLevel" in kinds
        and kinds <= _KEEPING_STAGES
        and type(model).__name__ == "BPE"
        and not (model.end_of_word_suffix or model.continuing_subword_prefix)
        and vocabulary.keys() >= _BYTES
        # such tokens take the white space beside them
        and not any(token.lstrip or token.rstrip for token in added.values())
    )
    if not keeps_bytes:
        return None
    return max(*map(len, vocabulary), *(len(token.content.encode()) for token in added.values()), 1)

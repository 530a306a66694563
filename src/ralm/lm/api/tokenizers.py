"""The tokenizer of a model behind an API: by hub name or folder, tiktoken's, or the server's own."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

import numpy as np
import tiktoken
from pydantic import JsonValue

from ralm.errors import ChatError, ModelError, UsageError
from ralm.lm.api.backends import parses
from ralm.lm.api.client import Client
from ralm.lm.api.servers import Server
from ralm.lm.local.tokenization import load_model_tokenizer
from ralm.lm.named import load_tokenizer
from ralm.lm.tokenizer import full_tokenizer, last_of_user
from ralm.protocols import FullTokenizer
from ralm.records import EncodedPiece, IntArray, Message, SpecialTokens

_TIKTOKEN: Final = "tiktoken:"
_NAMES: Final = ("tokenizer_path", "root", "model_path", "model_id")
"""Where servers say what a model is called on the hub, or which folder it is in."""
_KEPT: Final = 1 << 16
"""How many texts a server's own tokenizer remembers."""


@dataclass(frozen=True, slots=True, eq=False)
class ApiTokenizer:
    """A tokenizer of `size` token ids, what it is called in messages, and a hash of all that decides its tokens."""

    tokenizer: FullTokenizer
    name: str
    size: int
    fingerprint: str


def open_tokenizer(client: Client, server: Server) -> ApiTokenizer:
    """The tokenizer that the options name; else OpenAI's, the one that the server names, or the server itself.

    Raises UsageError if none is to be had, ModelError if the one that was named cannot be loaded.
    """
    named, model = client.options.tokenizer, client.endpoint.model
    if named is not None:
        return _of_tiktoken(named) if named.startswith(_TIKTOKEN) else _of_folder_or_hub(named)
    if client.endpoint.is_openai:
        return _of_tiktoken(f"{_TIKTOKEN}{model}")
    if server.kind == "llama.cpp":
        return _of_server(client, server)
    told = [str(server.says[key]) for key in _NAMES if server.says.get(key)]
    failure = None
    for name in dict.fromkeys([*told, model]):
        try:
            tokenizer = load_model_tokenizer(name)
            return ApiTokenizer(tokenizer, name, tokenizer.vocabulary, tokenizer.fingerprint)
        except ModelError as error:
            failure = error
    raise UsageError(
        f"{client.endpoint.url} does not say which tokenizer {model} has: name it as `tokenizer`, a hub name, a "
        f"folder, or tiktoken:NAME. ({failure})"
    ) from failure


def _of_folder_or_hub(name: str) -> ApiTokenizer:
    tokenizer = load_tokenizer(name)
    return ApiTokenizer(tokenizer, name, tokenizer.vocabulary, tokenizer.fingerprint)


def _of_tiktoken(name: str) -> ApiTokenizer:
    """An encoding of tiktoken, by its own name or by that of a model of OpenAI."""
    wanted = name.removeprefix(_TIKTOKEN)
    try:
        known = wanted in tiktoken.list_encoding_names()
        encoding = tiktoken.get_encoding(wanted) if known else tiktoken.encoding_for_model(wanted)
    except KeyError:
        choices = ", ".join(tiktoken.list_encoding_names())
        raise UsageError(f"tiktoken has no encoding for {wanted}; give tiktoken:NAME with one of {choices}.") from None
    except Exception as error:  # it downloads its files, and fails in the ways of any package that does
        raise ModelError(f"the encoding {wanted} of tiktoken cannot be loaded: {error}") from error
    return ApiTokenizer(
        full_tokenizer(TiktokenTokenizer(encoding)), name, encoding.n_vocab, f"{_TIKTOKEN}{encoding.name}"
    )


class TiktokenTokenizer:
    """An encoding of tiktoken as a `Tokenizer`; text of special tokens is read as text."""

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        self._encoding = encoding
        self.fingerprint = f"{_TIKTOKEN}{encoding.name}"

    @property
    def end_token(self) -> int | None:
        """The id of the end-of-text token."""
        return self._encoding._special_tokens.get("<|endoftext|>")

    def encode(self, text: str) -> IntArray:
        """Token ids (int64) of a text."""
        return np.array(self._encoding.encode_ordinary(text), dtype=np.int64)

    def encode_with_spans(self, text: str) -> tuple[IntArray, IntArray]:
        """The same ids (int64, N), and the first and one past the last character of each (int64, N x 2)."""
        tokens = self.encode(text)
        return tokens, _spans(text, [self._encoding.decode_single_token_bytes(token) for token in tokens.tolist()])

    def decode(self, tokens: IntArray) -> str:
        """The text of token ids; those that it does not know are skipped."""
        known = [token for token in tokens.tolist() if 0 <= token < self._encoding.n_vocab]
        return b"".join(map(self._bytes, known)).decode(errors="replace")

    def _bytes(self, token: int) -> bytes:
        try:
            return self._encoding.decode_single_token_bytes(token)
        except KeyError:  # an id between those of the vocabulary and the special ones
            return b""


def _of_server(client: Client, server: Server) -> ApiTokenizer:
    meta = server.says.get("meta")
    size = meta.get("n_vocab") if isinstance(meta, dict) else None
    if not isinstance(size, int):
        raise UsageError(f"{client.endpoint.url} does not say how many tokens its model has: name its `tokenizer`.")
    tokenizer = LlamaCppTokenizer(client)
    name = f"of {client.endpoint.url}"
    return ApiTokenizer(full_tokenizer(tokenizer), name, size, tokenizer.fingerprint)


class LlamaCppTokenizer:
    """The tokenizer of a llama.cpp server, which is asked for every text; what it said is remembered."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pieces = lru_cache(_KEPT)(self._asked_for_pieces)
        self._texts = lru_cache(_KEPT)(self._asked_for_text)
        bare, whole = (self._asked_for_pieces("a", special=special) for special in (False, True))
        self._before = [token for token, _ in whole[: len(whole) - len(bare)]]
        props = client.get("//props")
        self._end = self._special(props.get("eos_token"))
        self._begin = self._special(props.get("bos_token"))
        sample = [
            self._pieces(text)
            for text in (" Hello,  World!\n\n\tIt's", "\u00e9\u4e2d\U0001f600", str(props.get("model_path")))
        ]
        self.fingerprint = sha256(repr((sample, self._before, self._end)).encode()).hexdigest()[:16]

    @property
    def end_token(self) -> int | None:
        """The id of the end-of-text token, or None."""
        return self._end

    @property
    def special_tokens(self) -> SpecialTokens:
        """The tokens that the server adds before a text, and its BOS."""
        return SpecialTokens(np.array(self._before, dtype=np.int64), np.zeros(0, dtype=np.int64), self._begin)

    def encode(self, text: str) -> IntArray:
        """Token ids (int64) of a text, without special tokens."""
        return np.array([token for token, _ in self._pieces(text)], dtype=np.int64)

    def encode_with_spans(self, text: str) -> tuple[IntArray, IntArray]:
        """The same ids (int64, N), and the first and one past the last character of each (int64, N x 2)."""
        return self.encode(text), _spans(text, [piece for _, piece in self._pieces(text)])

    def decode(self, tokens: IntArray) -> str:
        """The text of token ids."""
        return self._texts(tuple(tokens.tolist()))

    @parses
    def _asked_for_pieces(self, text: str, *, special: bool = False) -> tuple[tuple[int, bytes], ...]:
        """The tokens of a text with their bytes."""
        body: dict[str, JsonValue] = {
            "content": text,
            "add_special": special,
            "parse_special": False,
            "with_pieces": True,
        }
        tokens: Any = self._client.post("//tokenize", body)["tokens"]
        return tuple((int(one["id"]), _bytes_of(one["piece"])) for one in tokens)

    @parses
    def _asked_for_text(self, tokens: tuple[int, ...]) -> str:
        return str(self._client.post("//detokenize", {"tokens": [*tokens]})["content"])

    @parses
    def _special(self, text: object) -> int | None:
        """The token that is spelled like this, if it is one."""
        if not isinstance(text, str) or not text:
            return None
        tokens: Any = self._client.post("//tokenize", {"content": text, "parse_special": True})["tokens"]
        return int(tokens[0]) if len(tokens) == 1 else None


def _bytes_of(piece: object) -> bytes:
    return piece.encode() if isinstance(piece, str) else bytes(piece)  # type: ignore[call-overload]


def _spans(text: str, pieces: Sequence[bytes]) -> IntArray:
    """The characters (int64, N x 2) that pieces of the UTF-8 bytes of a text stand for; those that share a character
    share its span. A space that a tokenizer puts before the text belongs to its first character."""
    character_of = [place for place, character in enumerate(text) for _ in character.encode()]
    extra = sum(map(len, pieces)) - len(character_of)
    ends = np.cumsum([0, *map(len, pieces)]) - max(extra, 0)
    spans = []
    for begin, end in zip(ends[:-1].clip(0), ends[1:].clip(0), strict=True):
        places = character_of[begin:end]
        spans.append(
            (places[0], places[-1] + 1)
            if places
            else (character_of[begin] if begin < len(character_of) else len(text),) * 2
        )
    return np.array(spans, dtype=np.int64).reshape(-1, 2)


_NONE = np.zeros(0, dtype=np.int64)


class BareTokenizer:
    """A `FullTokenizer` that adds no special tokens. With `messages`, a chat is the message itself: the server puts it
    into the model's chat template."""

    def __init__(self, tokenizer: FullTokenizer, *, messages: bool) -> None:
        self._own = tokenizer
        self._messages = messages
        self.fingerprint = f"{getattr(tokenizer, 'fingerprint', '')} without special tokens"

    @property
    def special_tokens(self) -> SpecialTokens:
        """None: the server adds its own."""
        return SpecialTokens(before=_NONE, after=_NONE, begin=None)

    @property
    def end_token(self) -> int | None:
        """The tokenizer's own."""
        return self._own.end_token

    @property
    def unknown_token(self) -> int | None:
        """The tokenizer's own."""
        return self._own.unknown_token

    def token_of(self, text: str) -> int | None:
        """As the tokenizer."""
        return self._own.token_of(text)

    def encode(self, text: str) -> IntArray:
        """As the tokenizer."""
        return self._own.encode(text)

    def encode_with_spans(self, text: str) -> tuple[IntArray, IntArray]:
        """As the tokenizer."""
        return self._own.encode_with_spans(text)

    def encode_pieces(self, chunks: Iterable[str]) -> Iterator[EncodedPiece]:
        """As the tokenizer."""
        return self._own.encode_pieces(chunks)

    def encode_document(self, text: str, max_tokens: int) -> IntArray:
        """Token ids (int64) of a document, cut to `max_tokens`."""
        return self._own.encode(text)[:max_tokens]

    def encode_chat(self, messages: Sequence[Message]) -> tuple[IntArray, IntArray] | None:
        """The ids and spans of a message, or of the chat that a server takes as text; ChatError if a server that takes
        a message is given several."""
        if not self._messages:
            return self._own.encode_chat(messages)
        if len(messages) > 1:
            raise ChatError(
                f"this model is asked with one message of the user, and the chat has {len(messages)}: leave out the "
                "others, or ask a server that takes a prompt as text."
            )
        return self._own.encode_with_spans(messages[last_of_user(messages)].content)

    def decode(self, tokens: IntArray) -> str:
        """As the tokenizer."""
        return self._own.decode(tokens)

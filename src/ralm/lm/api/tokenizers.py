"""Finds the tokenizer of a model behind an API: a hub name, folder or GGUF file, or an encoding of tiktoken."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
import tiktoken

from ralm.errors import ChatError, MissingExtraError, ModelError, RalmError, UsageError
from ralm.lm import model_path
from ralm.lm.api.backend import ServerInfo
from ralm.lm.api.client import Client
from ralm.lm.tokenizer import WithDefaults, full_tokenizer, last_of_user
from ralm.protocols import FullTokenizer
from ralm.records import IntArray, Message

_TIKTOKEN: Final = "tiktoken:"
_NAMES: Final = ("root", "model_path")
"""Fields in which servers report the hub name or folder of a model."""


@dataclass(frozen=True, slots=True, eq=False)
class ApiTokenizer:
    """A tokenizer with `size` token ids, its name in messages, and a hash of all that its tokens depend on."""

    tokenizer: FullTokenizer
    name: str
    size: int
    fingerprint: str


def open_tokenizer(client: Client, server: ServerInfo) -> ApiTokenizer:
    """Return the tokenizer in the options, else OpenAI's or the reported one; UsageError if there is none."""
    option, model = client.options.tokenizer, client.endpoint.model
    if option is not None:
        return _tiktoken(option) if option.startswith(_TIKTOKEN) else _hub_or_folder(option, model_path(option))
    if client.endpoint.is_openai:
        return _tiktoken(f"{_TIKTOKEN}{model}")
    reported = [str(server.fields[key]) for key in _NAMES if server.fields.get(key)]
    failure: RalmError | None = None
    for name in dict.fromkeys([*reported, model]):
        for local_files_only in (True, False):  # a hub is asked for what is not here
            try:
                return _hub_or_folder(name, model_path(name), local_files_only=local_files_only)
            except (ModelError, MissingExtraError) as error:
                failure = error
    raise UsageError(
        f"{client.endpoint.url} does not report the tokenizer of {model}, which all but `ralm ask` and `ralm serve` "
        f"need: name it as `tokenizer`, a hub name, folder, GGUF file, or tiktoken:NAME. ({failure})"
    ) from failure


def _hub_or_folder(name: str, folder: str, *, local_files_only: bool = False) -> ApiTokenizer:
    from ralm.lm.local.tokenization import load_model_tokenizer  # its import takes seconds

    source = {"trust_remote_code": False, "local_files_only": local_files_only}
    tokenizer = load_model_tokenizer(folder, source)
    return ApiTokenizer(tokenizer, name, tokenizer.vocabulary, tokenizer.fingerprint)


def _tiktoken(name: str) -> ApiTokenizer:
    """Return an encoding of tiktoken, by its own name or by that of a model of OpenAI."""
    title = name.removeprefix(_TIKTOKEN)
    try:
        is_encoding = title in tiktoken.list_encoding_names()
        encoding = tiktoken.get_encoding(title) if is_encoding else tiktoken.encoding_for_model(title)
    except KeyError:
        choices = ", ".join(tiktoken.list_encoding_names())
        raise UsageError(f"tiktoken has no encoding for {title}; give tiktoken:NAME with one of {choices}.") from None
    except Exception as error:  # it downloads its files, and lets the errors of that through
        raise ModelError(f"the encoding {title} of tiktoken cannot be loaded: {error}") from error
    tokenizer = _TiktokenTokenizer(encoding)
    return ApiTokenizer(full_tokenizer(tokenizer), name, encoding.n_vocab, tokenizer.fingerprint)


class _TiktokenTokenizer:
    """An encoding of tiktoken as a `Tokenizer`; text of special tokens is read as text."""

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        self._encoding = encoding
        self.fingerprint = f"{_TIKTOKEN}{encoding.name}"

    @property
    def end_token(self) -> int | None:
        # Private: tiktoken's table; the call fails.
        return self._encoding._special_tokens.get("<|endoftext|>")

    def encode(self, text: str) -> IntArray:
        return np.array(self._encoding.encode_ordinary(text), dtype=np.int64)

    def encode_with_spans(self, text: str) -> tuple[IntArray, IntArray]:
        tokens = self.encode(text)
        return tokens, _spans(text, [self._encoding.decode_single_token_bytes(token) for token in tokens.tolist()])

    def decode(self, tokens: IntArray) -> str:
        """Return the text of token ids; unknown ones are skipped."""
        ids = [token for token in np.asarray(tokens).tolist() if 0 <= token < self._encoding.n_vocab]
        return b"".join(map(self._bytes, ids)).decode(errors="replace")

    def _bytes(self, token: int) -> bytes:
        with suppress(KeyError):  # an id between those of the vocabulary and the special ones
            return self._encoding.decode_single_token_bytes(token)
        return b""


def _spans(text: str, pieces: Sequence[bytes]) -> IntArray:
    """Return the characters (int64, N x 2) of pieces of UTF-8 bytes; an added space belongs to the first."""
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


class PlainTokenizer(WithDefaults):
    """A tokenizer for servers that add special tokens, or, with `messages`, the model's chat template, themselves."""

    def __init__(self, tokenizer: FullTokenizer, *, messages: bool) -> None:
        super().__init__(tokenizer, ("end_token", "unknown_token", "token_of", "encode_with_spans"))
        self._tokenizer = tokenizer
        self._messages = messages
        self.fingerprint = f"{getattr(tokenizer, 'fingerprint', '')} without special tokens"

    def encode_chat(self, messages: Sequence[Message]) -> tuple[IntArray, IntArray] | None:
        """Return the ids and spans of a chat, with `messages` of its only message; ChatError if there are several."""
        if not self._messages:
            return self._tokenizer.encode_chat(messages)
        if len(messages) > 1:
            raise ChatError(
                f"this model takes one message of the user, and the chat has {len(messages)}: leave out the others, or "
                "use a server that takes a prompt as text."
            )
        return self._tokenizer.encode_with_spans(messages[last_of_user(messages)].content)

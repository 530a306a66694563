"""Encodes and decodes text with the tokenizer of a language model: plain texts, documents and chats.

A chat is written in the tokenizer's template. To find the span of each message, they are written a second time between
marks: if the text without the marks is the same, each message stands where its marks were.
"""

import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ralm.errors import ChatError, ModelError, TextError, installed_version, short_message
from ralm.lm import is_gguf
from ralm.lm.local.loading import check_source, check_tokenizer, loading_errors
from ralm.lm.tokenizer import Span, align, last_of_user
from ralm.records import IntArray, Message, SpecialTokens
from ralm.storage.work import scratch_folder

_LOG: Final = logging.getLogger(__name__)
_ABOVE_IDS: Final = 1 << 32
_REPLY: Final = "Somebody."
"""A message of the assistant that shows how its turn ends."""
_KEY_BYTES: Final = 8
_ASSISTANT: Final = "assistant"
_FIRST, _LAST, _WITHIN = "0", "1", "2"
"""The kinds of marks."""
_AFTER_THOUGHTS: Final = re.compile(r"[>)}\]]\s*(?=\S)")
"""The possible end of thoughts: a bracket, such as that of </think>, and white space."""
_SAMPLE: Final = " Hello,  World!\n\tIt's 3.14 o'clock: \u00e9\u4e2d\U0001f600 </s> <|endoftext|> "


@dataclass(frozen=True, slots=True)
class WrittenChat:
    """A chat as text, and the span of each message in it, without the white space around the message."""

    text: str
    spans: Sequence[Span]


class ModelTokenizer:
    """The tokenizer of a model: encodes text without special tokens, and documents with those it adds by default."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, template_arguments: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self._tokenizer = tokenizer
        self._template_arguments = dict(template_arguments)
        self._tokenizer.model_max_length = int(1e30)  # the plan takes care of lengths: no warnings, no truncation
        self.fingerprint = _fingerprint(tokenizer)

    @property
    def end_token(self) -> int | None:
        """The id of the end-of-text token, or None."""
        return self._tokenizer.eos_token_id

    @cached_property
    def turn_end(self) -> int | None:
        """The added token after a message of the assistant in the chat template, often no end-of-text token."""
        if not self._tokenizer.chat_template:
            return None
        said = [asdict(message) for message in (Message("user", "Who?"), Message("assistant", _REPLY))]
        try:
            written = write_chat(self._tokenizer, said, "", **self._template_arguments)
        except ChatError:  # such a template is reported where it is used
            return None
        _, reply, rest = written.rpartition(_REPLY)
        first = self._tokenizer.encode(rest.lstrip(), add_special_tokens=False)[:1] if reply else []
        return first[0] if first and first[0] in self._tokenizer.added_tokens_decoder else None

    @cached_property
    def special_tokens(self) -> SpecialTokens:
        """The special tokens that the tokenizer adds around a text by default, read off one letter, and its BOS."""
        bare, whole = (self._tokenizer.encode("a", add_special_tokens=special) for special in (False, True))
        bos = self._tokenizer.bos_token_id
        begins = [begin for begin in range(len(whole)) if bare and whole[begin : begin + len(bare)] == bare]
        begin = begins[0] if begins else whole.index(bos) + 1 if bos in whole else 0
        return SpecialTokens(
            before=np.array(whole[:begin], dtype=np.int64),
            after=np.array(whole[begin + len(bare) :], dtype=np.int64),
            begin=bos,
        )

    def token_of(self, text: str) -> int | None:
        """Return the id of the token with exactly this text, else of the unknown token; None if there is neither."""
        return self._tokenizer.convert_tokens_to_ids(text)

    @property
    def unknown_token(self) -> int | None:
        """The id of the token that stands for unknown text, or None."""
        return self._tokenizer.unk_token_id

    def encode(self, text: str) -> IntArray:
        """Return token ids (int64) of a text, without special tokens; TextError if it contains a lone surrogate."""
        _check_characters(text)
        return np.array(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int64)

    def encode_with_spans(self, text: str) -> tuple[IntArray, IntArray]:
        """Return the ids of `encode` and the characters of each (int64, N x 2); ModelError if they are hidden."""
        _check_characters(text)
        return self._encode(text)

    def encode_document(self, text: str, max_tokens: int) -> IntArray:
        """Return token ids (int64) of a document, cut to `max_tokens` with the special tokens around it."""
        return np.array(self._tokenizer.encode(text, truncation=True, max_length=max_tokens), dtype=np.int64)

    def encode_chat(self, messages: Sequence[Message]) -> tuple[IntArray, IntArray] | None:
        """Return the ids (int64, N) of a chat, and the span of each in the user's last message (int64, N x 2)."""
        if not self._tokenizer.chat_template:
            return None
        last = last_of_user(messages)
        chat = chat_with_spans(self._tokenizer, messages, self._template_arguments)
        edges = [0, *(place for span in self._spans_with_marks(chat) for place in span), len(chat.text)]
        parts = [
            (self._encode_as_text if number % 2 else self.encode_with_spans)(chat.text[begin:end])
            for number, (begin, end) in enumerate(pairwise(edges))
        ]
        tokens, spans_N2 = _joined(parts, edges[:-1])
        begin, end = chat.spans[last]
        content = messages[last].content
        in_message_N2 = np.clip(spans_N2, begin, end) - begin + len(content) - len(content.lstrip())
        in_message_N2[spans_N2[:, 1] <= begin] = 0
        in_message_N2[spans_N2[:, 0] >= end] = len(content)
        return tokens, in_message_N2

    def _spans_with_marks(self, chat: WrittenChat) -> list[Span]:
        """Return the messages of a chat, in order, that hold a part of text that looks like an added token."""
        marks = [mark for mark in self._tokenizer.get_added_vocab() if mark.strip()]
        longest = max(map(len, marks), default=0)
        pattern = re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))) or "(?!)")

        def has_mark(span: Span) -> bool:
            begin, end = span
            matches = pattern.finditer(chat.text, max(0, begin - longest + 1), end + longest - 1)
            return any(match.start() < end and match.end() > begin for match in matches)

        return sorted(filter(has_mark, chat.spans))

    def decode(self, tokens: IntArray) -> str:
        """Return the text of token ids, special tokens written out; unknown ids are skipped."""
        return str(self._tokenizer.decode(self._ids(tokens)))

    def decode_words(self, tokens: IntArray) -> str:
        """Return the text of token ids without special tokens."""
        return str(self._tokenizer.decode(self._ids(tokens), skip_special_tokens=True))

    def _ids(self, tokens: IntArray) -> list[int]:
        tokens = np.asarray(tokens, dtype=np.int64)
        above = _ABOVE_IDS if self._tokenizer.is_fast else self.vocabulary
        ids: list[int] = tokens[(tokens >= 0) & (tokens < above)].tolist()
        return ids

    def chat(
        self, messages: Sequence[Mapping[str, str]], *, template: str | None = None, continue_final: bool = False
    ) -> str:
        """Write messages (`role`, `content`) up to the model's answer or, with `continue_final`, to their end."""
        return write_chat(
            self._tokenizer,
            [dict(message) for message in messages],
            "the chat template of the tokenizer rejects these messages",
            chat_template=self.chat_template(template),
            add_generation_prompt=not continue_final,
            continue_final_message=continue_final,
            **self._template_arguments,
        )

    def chat_template(self, template: str | None = None) -> str:
        """Return the chat template, or the one named `template`; ModelError if the tokenizer does not have it."""
        templates = self._tokenizer.chat_template
        if not templates:
            raise ModelError("the tokenizer of this model has no chat template.")
        if isinstance(templates, str):
            templates = {"default": templates}
        if (template or "default") not in templates:
            raise ModelError(f"the tokenizer has no chat template {template!r}; it has {', '.join(templates)}.")
        return str(templates[template or "default"])

    def _encode_as_text(self, text: str) -> tuple[IntArray, IntArray]:
        """Return the ids and spans of a text that holds no special tokens, only text that looks like them."""
        added = set(self._tokenizer.get_added_vocab()) - set(self._tokenizer.all_special_tokens)
        # a mark would be read as one token: cut inside
        marks = [mark for mark in added if len(mark.strip()) > 1 and mark in text]
        cuts = sorted({match.start() + 1 for mark in marks for match in re.finditer(re.escape(mark), text)})
        edges = [0, *cuts, len(text)]
        parts = [self._encode(text[begin:end], split_special_tokens=True) for begin, end in pairwise(edges)]
        return _joined(parts, edges[:-1])

    def _encode(self, text: str, **options: bool) -> tuple[IntArray, IntArray]:
        if self._tokenizer.is_fast:
            encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, **options)
            tokens, spans = encoded["input_ids"], encoded["offset_mapping"]
        else:
            tokens = self._tokenizer.encode(text, add_special_tokens=False, **options)
            spans = align(text, tokens, self._decode_plainly)
        return np.array(tokens, dtype=np.int64), np.array(spans, dtype=np.int64).reshape(-1, 2)

    @cached_property
    def vocabulary(self) -> int:
        """The number of token ids of the tokenizer, those without a token included."""
        return max(self._tokenizer.get_vocab().values()) + 1

    def _decode_plainly(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def load_model_tokenizer(
    name: str,
    source: Mapping[str, Any] = MappingProxyType({"trust_remote_code": False}),
    template_arguments: Mapping[str, Any] = MappingProxyType({}),
) -> ModelTokenizer:
    """Load a model's tokenizer by hub name, folder or GGUF file; `source` are arguments of `from_pretrained`."""
    check_source(name, source)
    if is_gguf(name):
        from ralm.lm.local.gguf import load_gguf_tokenizer

        with loading_errors("tokenizer", name):
            return ModelTokenizer(load_gguf_tokenizer(name), template_arguments)
    if not (Path(name) / "tokenizer_config.json").is_file():
        check_tokenizer(name)
    with loading_errors("tokenizer", name):
        loaded = AutoTokenizer.from_pretrained(name, **source)
        tokenizer = ModelTokenizer(loaded, template_arguments)
    if loaded.vocab_files_names:  # ByT5 has none: its tokens are bytes
        check_tokenizer(name, loaded.vocab_files_names.values())
    return tokenizer


def _joined(parts: Sequence[tuple[IntArray, IntArray]], begins: Sequence[int]) -> tuple[IntArray, IntArray]:
    """Return the ids and spans of a text from those of its parts, which begin at these characters."""
    spans_N2 = [spans + begin for (_, spans), begin in zip(parts, begins, strict=True)]
    return np.concatenate([ids for ids, _ in parts]), np.concatenate(spans_N2, dtype=np.int64)


def _check_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as bad:
        raise TextError(
            f"character {bad.start:,} of the text is half a character, a lone surrogate ({text[bad.start]!r})."
        ) from None


def _fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of everything that decides how text is encoded and ids are decoded, and of an encoded sample."""
    if tokenizer.is_fast:
        # Private: the tokenizer below transformers' own; the call fails.
        tokenizer.backend_tokenizer.no_truncation()  # without those of the last text
        tokenizer.backend_tokenizer.no_padding()
    decisive = {
        "tokenizer": str(tokenizer.backend_tokenizer.to_str()) if tokenizer.is_fast else _files(tokenizer),
        "sample": tokenizer.encode(_SAMPLE),
        "special": {name: str(token) for name, token in sorted(tokenizer.special_tokens_map.items())},
        "cleans": bool(tokenizer.clean_up_tokenization_spaces),
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


def _files(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the class of a slow (Python) tokenizer, its added tokens, and hashes of the files it would save."""
    added = [f"{number} {token!r}" for number, token in sorted(tokenizer.added_tokens_decoder.items())]
    with scratch_folder() as folder:
        files = sorted(Path(file) for file in tokenizer.save_vocabulary(str(folder)) or ())
        saved = [f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]
    return [type(tokenizer).__name__, *added, *saved]


def chat_with_spans(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], arguments: Mapping[str, Any]
) -> WrittenChat:
    """Write a chat up to the model's answer; ChatError if the template rejects, leaves out or changes a message."""

    def chat_text(chat: Sequence[Message]) -> str:
        failure = "the chat template of this model rejects these messages"
        return write_chat(
            tokenizer, [asdict(message) for message in chat], failure, add_generation_prompt=True, **arguments
        )

    marks = _Marks(messages)
    written = marks.remove_from(chat_text(marks.marked))
    if written.text != chat_text(messages):
        raise ChatError(
            "the chat template of this model treats these messages in a special way: word them differently, or choose "
            "another `prompt`."
        )
    return written


class _Marks:
    """Marks around messages, which no message contains, and in those of the assistant after possible thoughts."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        contents = "\0".join(message.content for message in messages)
        digest = hashlib.blake2b(contents.encode("utf-8", "replace"), digest_size=_KEY_BYTES)
        self._key = int.from_bytes(digest.digest())

    @property
    def marked(self) -> list[Message]:
        return [replace(message, content=self._marked(place, message)) for place, message in enumerate(self._messages)]

    def _marked(self, place: int, message: Message) -> str:
        words = message.content.strip()
        if not words:
            return message.content
        first, last, within = (f"~{self._key}.{place}.{kind}~" for kind in (_FIRST, _LAST, _WITHIN))
        if message.role == _ASSISTANT:
            words = _AFTER_THOUGHTS.sub(lambda match: match[0] + within, words)
        return message.content.replace(message.content.strip(), f"{first}{words}{last}")

    def remove_from(self, text: str) -> WrittenChat:
        """Return the text without the marks, and the spans between them; ChatError if a message is not there."""
        parts = re.split(rf"~{self._key}\.(\d+)\.(\d)~", text)
        positions: dict[tuple[int, str], list[int]] = {}
        length = len(parts[0])
        for place, kind, following in zip(map(int, parts[1::3]), parts[2::3], parts[3::3], strict=True):
            positions.setdefault((place, kind), []).append(length)
            length += len(following)
        bare = "".join(parts[::3])
        return WrittenChat(bare, [self._span(place, bare, positions) for place in range(len(self._messages))])

    def _span(self, place: int, text: str, positions: Mapping[tuple[int, str], Sequence[int]]) -> Span:
        message = self._messages[place]
        words = message.content.strip()
        if not words:
            return 0, 0
        name = f"the message {message.content[:40]!r} (number {place + 1}, {message.role})"
        first, within, last = (positions.get((place, kind), []) for kind in (_FIRST, _WITHIN, _LAST))
        if not (first or within or last):
            remedy = "choose another `prompt`" if message.role == "user" else "put it into a message of the user"
            raise ChatError(f"the chat template of this model leaves out {name}: {remedy}.")
        begins = [*first, *within]
        if len(last) == 1 and begins and len(first) <= 1:
            begin, end = min(begins), last[0]
            if text[begin:end] == words or (message.role == _ASSISTANT and begin <= end):
                return begin, end
        raise ChatError(
            f"the chat template of this model changes {name}: word it differently, or choose another `prompt`."
        )


def write_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]], failure: str, **how: Any) -> str:
    """Write messages in the tokenizer's chat template; ChatError, which begins with `failure`, if it fails."""
    try:
        # Private: the keywords of transformers' chat templates; a test of its signature.
        written = tokenizer.apply_chat_template(messages, tokenize=False, **how)
    except Exception as error:  # a template is a program of its own, with any error
        raise ChatError(f"{failure}: {short_message(error)}.") from error
    if not isinstance(written, str):
        raise ModelError(
            f"{installed_version('transformers')} returned a chat as {type(written).__name__}, not as text: this is a "
            "fault of ralm, please report it."
        )
    return written

"""Prompts of questions: templates in TOML files, conversations, and prompts as token ids that fit into the model.

In a template, `{question}`, `{choices}`, `{documents}`, `{number}` (of a passage, from 1), `{title}`, `{text}`,
`{answer}`, `{letter}` and `{choice}` are filled in. The templates that have a name are in `prompt_files/`.
"""

import json
import re
import string
import tomllib
from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass, fields, replace
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal

import numpy as np
from pydantic import JsonValue, TypeAdapter, ValidationError

from ralm.answering.options import CHAT_ANSWER, AnswerOptions
from ralm.corpus.files import whole_text
from ralm.errors import ChatError, InputError, LengthError, UsageError
from ralm.lm.tokenizer import full_tokenizer, has_chat_template, last_of_user
from ralm.protocols import Reader, Tokenizer
from ralm.reading.readers import Ensemble
from ralm.reading.tokens import first_tokens
from ralm.records import IntArray, Message, Passage

QuestionForm = Literal["as it is", "lower first letter, question mark"]
"""The form of a question in a prompt; the second is that of In-Context RALM's code."""

LETTERS: Final = string.ascii_uppercase
_PLACE: Final = re.compile(r"\{(question|choices|documents|number|title|text|answer|letter|choice)\}")
_ASKING: Final = ("closed", "one", "several")
_SAMPLE: Final = (Message("user", "Who?"),)
_CONTEXT_TOKENS: Final = 8
"""Tokens at the end of a prompt that are encoded together with a text after it."""
_CHOICES_PLACE: Final = "{choices}"
PROMPTS: Final = ("in-context-ralm", "replug", "replug-choice", "replug-choice-code", "chat", "chat-choice", "numbered")
"""The prompts that have a name: those of the two papers, and those for models with a chat template."""
_SUFFIX: Final = ".toml"
_ASKS: Final = (("documents", "question"), ("choices",))
_PLACES: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "closed": (("question",), ("choices",)),
    "one": _ASKS,
    "several": _ASKS,
    "document": (("text",), ("title", "number")),
    "answer": (("answer",), ()),
    "choice": (("letter", "choice"), ()),
    **dict.fromkeys(("between", "after", "between_choices", "system"), ((), ())),
}
"""The places that each text of a prompt must have, and those that it may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionPrompt:
    """How a question is asked.

    `closed` asks without passages, `one` and `several` with one passage or more; in these, `{documents}` are the
    passages, each in the form `document`, joined by `between`. `answer` is the form of an answer after the prompt, in
    demonstrations and where a gold answer is scored. `after` ends a demonstration. In a prompt of multiple choice,
    `{choices}` are the choices, each with its letter in the form `choice`, joined by `between_choices`. With `chat`,
    all of it is one message of the user, and the model's chat template is written around it, after a `system` message
    if there is one. A text may begin with a line break after its quotes, which does not count (TOML). `name` is that of
    the prompt or of its file.
    """

    closed: str
    one: str
    several: str
    document: str
    between: str
    answer: str = " {answer}"
    after: str = "\n\n"
    question: QuestionForm = "as it is"
    choice: str = "{letter}. {choice}"
    between_choices: str = "\n"
    chat: bool = False
    system: str = ""
    name: str = "own"

    def __post_init__(self) -> None:
        if self.system and not self.chat:
            raise UsageError("`system` has no effect without a chat: choose the `prompt` chat, or one with chat.")

    @property
    def shows_choices(self) -> bool:
        """Whether choices stand in the prompt."""
        return _CHOICES_PLACE in self.closed

    @property
    def numbers_passages(self) -> bool:
        """Whether the prompt numbers its passages, so that an answer can cite them."""
        return "{number}" in self.document

    @property
    def asks_after_passages(self) -> bool:
        """Whether the question stands after the passages."""
        return all("{question}" in form.partition("{documents}")[2] for form in (self.one, self.several))

    def format_question(self, question: str) -> str:
        """Return the question in the form of this prompt."""
        if self.question == "as it is":
            return question
        marked = question if question.endswith("?") else f"{question}?"
        return marked[0].lower() + marked[1:]

    def format_answer(self, answer: str) -> str:
        """Return an answer in the form of this prompt."""
        return _filled(self.answer, {"answer": answer})

    def text(
        self, question: str, passages: Sequence[Passage], choices: Sequence[str] = (), *, several: bool | None = None
    ) -> "PromptText":
        """Return the prompt of a question with these passages, best first, and these choices.

        `several` chooses the wording for several passages, also around one or none; by default their number does.
        Raises UsageError if the prompt shows choices and there are none.
        """
        if self.shows_choices and not choices:
            raise UsageError(f"this prompt shows choices, and the question {question[:60]!r} has none.")
        listed = self.between_choices.join(
            _filled(self.choice, {"letter": letter, "choice": choice})
            for letter, choice in zip(LETTERS, choices, strict=False)
        )
        values = {"question": self.format_question(question), "choices": listed}
        form = self.several if several or (several is None and len(passages) > 1) else self.one
        if several is None and not passages:
            form = self.closed
        documents = self.between.join(
            _filled(self.document, {"number": str(number), "title": passage.title, "text": passage.text})
            for number, passage in enumerate(passages, 1)
        )
        begin, _, rest = form.rpartition("{documents}")
        return PromptText(documents=_filled(begin, values) + documents, question=_filled(rest, values))

    def same_words(self, *, several: bool, number: int | None = None) -> "QuestionPrompt":
        """Return this prompt with the words for one passage or for several around any; `number` is the first one's."""
        form, called = self.several if several else self.one, "{number}" if number is None else str(number)
        return replace(self, closed=form, one=form, document=self.document.replace("{number}", called))

    def demonstration(
        self, question: str, answer: str, passages: Sequence[Passage], choices: Sequence[str] = ()
    ) -> str:
        """Return a question with its passages, choices and answer, to stand before another prompt."""
        prompt = self.text(question, passages, choices)
        return f"{prompt.documents}{prompt.question}{self.format_answer(answer)}{self.after}"


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt in two parts, in the order of the text: the passages, and the question."""

    documents: str
    question: str

    def __str__(self) -> str:
        return self.documents + self.question


def _filled(form: str, values: dict[str, str]) -> str:
    """Return a text with its places filled; other braces, and those in the values, stay."""
    return _PLACE.sub(lambda place: values.get(place[1], place[0]), form)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in their order, of which the last one of the user is answered.

    The prompt puts passages into that message. They are found with `query`; None is the text of the message.
    """

    messages: Sequence[Message]
    query: str | None = None

    @classmethod
    def of(cls, question: "str | Conversation") -> "Conversation":
        """Return a question as a conversation of one message; a conversation as it is."""
        return cls((Message("user", question),)) if isinstance(question, str) else question

    @property
    def question(self) -> str:
        """The message that is answered; ChatError if no message is of the user."""
        return self.messages[last_of_user(self.messages)].content

    @property
    def search_query(self) -> str:
        """The query that finds passages."""
        return self.question if self.query is None else self.query

    def after(self, system: str) -> "Conversation":
        """Return the same conversation after a system message, unless it has one."""
        systems = [message for message in self.messages if message.role == "system"]
        leading = [Message("system", system)] if system and not systems else systems
        rest = [message for message in self.messages if message.role != "system"]
        return replace(self, messages=(*leading, *rest))

    def with_question(self, text: str) -> "Conversation":
        """Return the same conversation with this text as the message that is answered."""
        place = last_of_user(self.messages)
        asked = replace(self.messages[place], content=text)
        return replace(self, messages=(*self.messages[:place], asked, *self.messages[place + 1 :]))


@dataclass(frozen=True, slots=True)
class Cut:
    """How many tokens were cut of a prompt's parts; only official semantics cut `special` ones."""

    demonstrations: int = 0
    documents: int = 0
    special: int = 0

    def __bool__(self) -> bool:
        return bool(self.demonstrations or self.documents or self.special)

    def as_row(self) -> dict[str, int]:
        """Return the columns of the cut in a table."""
        return {f"cut_{name}": tokens for name, tokens in asdict(self).items()}


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A prompt as token ids (int64), what was cut of it, and how many of its tokens begin after the passages."""

    tokens: IntArray
    cut: Cut
    after_passages: int


class PromptEncoder:
    """Encodes prompts into at most `room` tokens; longer ones are cut at the beginning of the text.

    Special tokens that it begins with stay unless `keep_first` is false, as in In-Context RALM's code; those of a
    `chat` around it stay, too.
    """

    def __init__(self, tokenizer: Tokenizer, room: int, *, keep_first: bool = True, chat: bool = False) -> None:
        self._tokenizer = full_tokenizer(tokenizer)
        self._first = first_tokens(tokenizer, "auto")
        self._room = room
        self._keep_first = keep_first
        self._chat = chat

    def encode(
        self,
        prompt: PromptText,
        demonstrations: str = "",
        name: str = "the question",
        conversation: Conversation | None = None,
    ) -> Encoded:
        """Return the tokens of a prompt after its demonstrations, or as the message that a conversation asks.

        If it does not fit, demonstrations are cut, then passages. Raises LengthError if the question does not fit,
        ChatError if the model has no chat template, or it rejects the messages.
        """
        text = demonstrations + str(prompt)
        asked = conversation or Conversation.of(text)
        tokens, spans_N2 = self._encoded(text, asked)
        before, documents = len(demonstrations), len(demonstrations) + len(prompt.documents)
        first = int(np.searchsorted(spans_N2[:, 1], 0, side="right"))
        end = max(first, int(np.searchsorted(spans_N2[:, 0], documents)))
        excess, after_passages = len(tokens) - self._room, len(tokens) - end
        if excess <= 0:
            return Encoded(tokens, Cut(), after_passages)
        dropped = excess if self._keep_first else max(0, excess - first)
        in_demonstrations = int(np.searchsorted(spans_N2[:, 1], before, side="right")) - first
        in_documents = int(np.searchsorted(spans_N2[:, 1], documents, side="right")) - first
        if dropped > in_documents:
            kept = first if self._keep_first else 0
            if len(asked.messages) > 1:
                name, first, kept = "the conversation", 0, 0
            raise LengthError(
                f"{name} has {len(tokens) - first - in_documents} tokens with its instructions, and only "
                f"{max(0, self._room - kept)} fit into the model beside the answer: shorten it."
            )
        special = 0 if self._keep_first else min(excess, first)
        cut = Cut(min(dropped, in_demonstrations), max(0, dropped - in_demonstrations), special)
        remaining = np.concatenate([tokens[special:first], tokens[first + dropped :]])
        return Encoded(remaining, cut, after_passages)

    def _encoded(self, text: str, conversation: Conversation) -> tuple[IntArray, IntArray]:
        """Return the tokens of a prompt and their spans; those that it begins with have empty spans at 0."""
        if self._chat:
            encoded = self._tokenizer.encode_chat(conversation.with_question(text).messages)
            if encoded is None:
                raise ChatError(
                    "the tokenizer of this model has no chat template, which this prompt needs: choose another "
                    "`prompt`."
                )
            return encoded
        if len(conversation.messages) > 1:
            raise ChatError(
                f"the conversation has {len(conversation.messages)} messages, and this prompt asks one question: give "
                "one message of the user, or choose a `prompt` with `chat = true`."
            )
        tokens, spans_N2 = self._tokenizer.encode_with_spans(text)
        spans_of_first = np.zeros((len(self._first), 2), dtype=np.int64)
        return np.concatenate([self._first, tokens]), np.concatenate([spans_of_first, spans_N2])


def prompt_config(prompt: QuestionPrompt, tokenizer: Tokenizer) -> dict[str, JsonValue]:
    """Return everything about a prompt that decides its tokens; of a chat template, a hash of its output."""
    written = full_tokenizer(tokenizer).encode_chat(_SAMPLE) if prompt.chat else None
    template = None if written is None else blake2b(written[0].tobytes(), digest_size=8).hexdigest()
    return {**asdict(prompt), "chat_template": template}


def tokens_after(prompt: IntArray, text: str, tokenizer: Tokenizer) -> IntArray:
    """Return the tokens (int64) of a text that continues a prompt; alone, SentencePiece adds a space to it."""
    before = tokenizer.decode(prompt[-_CONTEXT_TOKENS:])
    begin, whole = tokenizer.encode(before), tokenizer.encode(before + text)
    continues = np.array_equal(whole[: len(begin)], begin)
    return whole[len(begin) :] if continues else tokenizer.encode(text)


def open_prompt(text: Path | str) -> QuestionPrompt:
    """Open a prompt by its name, or from a TOML file.

    Raises:
        InputError: There is no such prompt, or the file is not a prompt; the message names the fault.
    """
    name, file = str(text), Path(text)
    if name in PROMPTS:
        content = files("ralm.answering").joinpath("prompt_files", f"{name}{_SUFFIX}").read_text("utf-8")
        return replace(_parsed(content, name), name=name)
    if file.suffix == _SUFFIX:
        return replace(_parsed(whole_text(file, InputError), name), name=file.name)
    raise InputError(f"{name} is unknown: give one of {', '.join(PROMPTS)} or a {_SUFFIX} file.")


def chosen_prompt(
    prompt: QuestionPrompt | None, tokenizer: Tokenizer, reader: Reader, options: AnswerOptions, named: Container[str]
) -> tuple[QuestionPrompt, AnswerOptions]:
    """Return the prompt, by default `chat` or the paper's with this reader, and the options, `as_chat` after a chat."""
    if prompt is None:
        paper = "replug" if isinstance(reader, Ensemble) else "in-context-ralm"
        prompt = open_prompt("chat" if has_chat_template(tokenizer) else paper)
    return prompt, as_chat(options, named) if prompt.chat else options


def as_chat(options: AnswerOptions, named: Container[str]) -> AnswerOptions:
    """Return the options as `CHAT_ANSWER`, but for those that are `named`."""
    usual = {name: getattr(CHAT_ANSWER, name) for name in ("new_tokens", "stop") if name not in named}
    return replace(options, **usual)


def _parsed(content: str, where: str) -> QuestionPrompt:
    try:
        table = tomllib.loads(content)
        keys = [field.name for field in fields(QuestionPrompt) if field.name != "name"]
        if unknown := sorted(table.keys() - keys):
            raise UsageError(f"it has {', '.join(unknown)}; a prompt has {', '.join(keys)}.")
        prompt = TypeAdapter(QuestionPrompt).validate_json(json.dumps(table, default=str), strict=True)
        _check_places(prompt)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where} is not TOML: {error}.") from None
    except UsageError as error:
        raise InputError(f"{where}: {error}") from None
    except ValidationError as error:
        faults = (f"{fault['loc'][0]}: {fault['msg']}" for fault in error.errors())
        raise InputError(f"{where} is no prompt: {'; '.join(faults)}.") from None
    return prompt


def _check_places(prompt: QuestionPrompt) -> None:
    """Raise UsageError if places are missing, unknown or where a prompt is cut, or if only some texts show choices."""
    for name, (required, allowed) in _PLACES.items():
        places = _PLACE.findall(getattr(prompt, name))
        if lacking := [place for place in required if place not in places]:
            raise UsageError(f"{name} lacks {{{lacking[0]}}}.")
        if unknown := [place for place in places if place not in (*required, *allowed)]:
            raise UsageError(f"{name} has {{{unknown[0]}}}, which is never filled there.")
        if places.count("documents") > 1:
            raise UsageError(f"{name} has {{documents}} twice.")
    for name, form in (("one", prompt.one), ("several", prompt.several)):
        before = form.partition("{documents}")[0]
        if early := [place for place in ("{question}", _CHOICES_PLACE) if place in before]:
            raise UsageError(
                f"{name} has {early[0]} before {{documents}}, where a prompt that is too long is cut: put it after "
                "them."
            )
    without = [name for name in _ASKING if _CHOICES_PLACE not in getattr(prompt, name)]
    if 0 < len(without) < len(_ASKING):
        raise UsageError(f"{without[0]} lacks {_CHOICES_PLACE}, which the other texts have.")

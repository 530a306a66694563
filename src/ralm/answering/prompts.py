"""Prompts of questions, as data: how a question, its passages and demonstrations become one text.

A prompt is a TOML file of texts; `{question}`, `{choices}`, `{documents}`, `{title}`, `{text}`, `{answer}`, `{letter}`
and `{choice}` in them are filled in. Those that have a name are in `prompt_files/`. Works on texts; knows nothing of
tokens or models.
"""

import re
import string
import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal, get_args

from ralm.corpus.text import read_utf8
from ralm.errors import QuestionFileError, UsageError
from ralm.records import Passage

QuestionForm = Literal["as it is", "lower first letter, question mark"]
"""What a prompt does to a question. The second is that of In-Context RALM's code: a question mark is appended unless it
is there, and the first letter is lowered."""

PROMPTS: Final = ("in-context-ralm", "replug", "replug-choice", "replug-choice-code", "chat", "chat-choice")
"""The prompts that have a name: those of the two papers, and one for models with a chat template."""
LETTERS: Final = string.ascii_uppercase
"""The letters of choices, in order."""
_SUFFIX: Final = ".toml"
_PLACE: Final = re.compile(r"\{(question|choices|documents|title|text|answer|letter|choice)\}")
_PLACES: Final = {
    "closed": ("question",),
    "one": ("documents", "question"),
    "several": ("documents", "question"),
    "document": ("text",),
    "answer": ("answer",),
    "choice": ("letter", "choice"),
}
"""What each text of a prompt must hold."""
_MAY_HOLD: Final = {
    "closed": ("choices",),
    "one": ("choices",),
    "several": ("choices",),
    "document": ("title",),
}
"""What it may hold besides."""
_ASKING: Final = ("closed", "one", "several")
"""The texts of a prompt that ask the question."""
_CHOICES: Final = "{choices}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionPrompt:
    """How a question is asked.

    `closed` asks without passages, `one` and `several` with one passage or more; in these, `{documents}` are the
    passages, each in the form `document`, joined by `between`. `answer` is what an answer looks like behind the prompt,
    in demonstrations and where a gold answer is scored. `after` ends a demonstration. In a prompt of multiple choice,
    `{choices}` are the choices, each with its letter in the form `choice`, joined by `between_choices`. With `chat`,
    all of it is one message of the user, and the model's chat template is written around it. A text may begin with a
    line break after its quotes, which does not count (TOML).
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

    @property
    def shows_choices(self) -> bool:
        """Whether choices stand in the prompt."""
        return _CHOICES in self.closed

    def asked(self, question: str) -> str:
        """The question in the form of this prompt."""
        if self.question == "as it is":
            return question
        marked = question if question.endswith("?") else f"{question}?"
        return marked[0].lower() + marked[1:]

    def answered(self, answer: str) -> str:
        """An answer as it stands behind the prompt."""
        return _filled(self.answer, {"answer": answer})

    def text(
        self,
        question: str,
        passages: Sequence[Passage],
        choices: Sequence[str] = (),
        *,
        several: bool | None = None,
    ) -> "PromptText":
        """The prompt of a question with these passages, best first, and these choices.

        `several` chooses the wording: by default that for several passages if there are more than one, and for none if
        there are none. The official code goes by how many were asked for. Raises UsageError if the prompt shows choices
        and there are none.
        """
        values = {"question": self.asked(question), "choices": self._listed(question, choices)}
        if several is None and not passages:
            return PromptText(documents="", question=_filled(self.closed, values))
        form = self.several if several or (several is None and len(passages) > 1) else self.one
        documents = self.between.join(
            _filled(self.document, {"title": passage.title, "text": passage.text}) for passage in passages
        )
        begin, _, rest = form.partition("{documents}")
        filled = [_filled(part, values) for part in (begin, rest)]
        return PromptText(documents=filled[0] + documents, question=filled[1])

    def _listed(self, question: str, choices: Sequence[str]) -> str:
        if self.shows_choices and not choices:
            raise UsageError(f"this prompt shows choices, and the question {question[:60]!r} has none.")
        return self.between_choices.join(
            _filled(self.choice, {"letter": letter, "choice": choice})
            for letter, choice in zip(LETTERS, choices, strict=False)
        )

    def demonstration(
        self, question: str, answer: str, passages: Sequence[Passage], choices: Sequence[str] = ()
    ) -> str:
        """A question with its passages, its choices and its answer, to stand before another prompt."""
        prompt = self.text(question, passages, choices)
        return f"{prompt.documents}{prompt.question}{self.answered(answer)}{self.after}"


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt in its parts, in the order of the text: what holds the passages, and what asks the question."""

    documents: str
    question: str

    def __str__(self) -> str:
        return self.documents + self.question


def open_prompt(name: Path | str) -> QuestionPrompt:
    """A prompt by its name (one of `PROMPTS`), or from a TOML file.

    Raises QuestionFileError if there is no such prompt, or if the file is not a prompt: what is wrong is named.
    """
    if str(name) in PROMPTS:
        file = files("ralm.answering").joinpath("prompt_files", f"{name}{_SUFFIX}")
        return _parsed(file.read_text("utf-8"), str(name))
    path = Path(name)
    if path.suffix != _SUFFIX:
        raise QuestionFileError(f"{name} is no prompt: give {', '.join(PROMPTS)} or a file that ends in {_SUFFIX}.")
    return _parsed(read_utf8(path, QuestionFileError), str(path))


def _parsed(content: str, where: str) -> QuestionPrompt:
    try:
        table = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise QuestionFileError(f"{where} is not TOML: {error}.") from None
    known = [field.name for field in fields(QuestionPrompt)]
    if unknown := sorted(set(table) - set(known)):
        raise QuestionFileError(f"{where} has {', '.join(unknown)}; a prompt has {', '.join(known)}.")
    required = {field.name for field in fields(QuestionPrompt) if field.default is MISSING}
    if missing := sorted(required - set(table)):
        raise QuestionFileError(f"{where} lacks {', '.join(missing)}.")
    for name, value in table.items():
        _check_value(name, value, where)
    _check_order(table, where)
    _check_choices(table, where)
    if table.get("question", "as it is") not in get_args(QuestionForm):
        forms = " or ".join(f'"{form}"' for form in get_args(QuestionForm))
        raise QuestionFileError(f"{where}: question is {table['question']!r}; it should be {forms}.")
    return QuestionPrompt(**table)


def _check_value(name: str, value: object, where: str) -> None:
    """Raise QuestionFileError if a value has another type, or if places in a text are missing or never filled."""
    if name == "chat":
        if not isinstance(value, bool):
            raise QuestionFileError(f"{where}: chat is {value!r}; it should be true or false.")
        return
    if not isinstance(value, str):
        raise QuestionFileError(f"{where}: {name} is not a text in quotes.")
    held = _PLACE.findall(value)
    if lacking := [place for place in _PLACES.get(name, ()) if place not in held]:
        raise QuestionFileError(f"{where}: {name} lacks {{{lacking[0]}}}.")
    if other := [place for place in held if place not in (*_PLACES.get(name, ()), *_MAY_HOLD.get(name, ()))]:
        raise QuestionFileError(f"{where}: {name} has {{{other[0]}}}, which nothing is filled into there.")
    if held.count("documents") > 1:
        raise QuestionFileError(f"{where}: {name} has {{documents}} twice.")


def _check_order(table: dict[str, str], where: str) -> None:
    """Raise QuestionFileError if the question or the choices stand where a long prompt is cut."""
    for name in ("one", "several"):
        before = table[name].partition("{documents}")[0]
        for place in ("{question}", _CHOICES):
            if place in before:
                raise QuestionFileError(
                    f"{where}: {name} has {place} in front of {{documents}}, where a prompt that is too long is cut: "
                    "put it behind them."
                )


def _check_choices(table: dict[str, str], where: str) -> None:
    """Raise QuestionFileError if only some texts of a prompt show the choices, or none although it says how."""
    without = [name for name in _ASKING if _CHOICES not in table[name]]
    if 0 < len(without) < len(_ASKING):
        raise QuestionFileError(f"{where}: {without[0]} lacks {_CHOICES}, which the other texts have.")
    if without and (idle := [name for name in ("choice", "between_choices") if name in table]):
        raise QuestionFileError(f"{where}: {idle[0]} does nothing, since closed, one and several lack {_CHOICES}.")


def _filled(form: str, values: dict[str, str]) -> str:
    """A text with its places filled; other braces, and those in the values, stay."""
    return _PLACE.sub(lambda place: values.get(place[1], place[0]), form)

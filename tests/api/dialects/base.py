"""What all dialects share: a call with its model and fault, prompts as tokens, names of tokens."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tests.api.backings import Backing
from tests.api.faults import Fault
from tests.api.writing import Json, RefusedError, Task, Written, write

Handler: TypeAlias = Callable[["Call"], Json | list[Json]]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One request: its number and body, and the model and the fault that answer it."""

    number: int
    body: Json
    backing: Backing
    fault: Fault
    model: str

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The ids of a text, with the special tokens that the tokenizer adds or without."""
        before = self.backing.tokenizer.special_tokens.before.tolist() if special else []
        return [*before, *self.backing.tokenizer.encode(text).tolist()]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids."""
        return self.backing.tokenizer.decode(np.array(tokens, dtype=np.int64))

    def text(self, token: int) -> str:
        """The text of one token; a part of a character is U+FFFD."""
        return self.backing.piece(token).decode(errors="replace")

    def bytes_of(self, token: int) -> list[int]:
        """The bytes of one token."""
        return list(self.backing.piece(token))

    def write(self, task: Task) -> Written:
        """Read and continue a prompt."""
        written = write(self.backing, task)
        written.prompt[:] = self.fault.prompt_rows(written.prompt)
        return written

    @property
    def begin(self) -> int:
        """The BOS; token 0 if the tokenizer names none."""
        begin = self.backing.tokenizer.special_tokens.begin
        return 0 if begin is None else begin

    def begun(self, tokens: list[int]) -> list[int]:
        """A prompt as the model reads it: with a BOS in front where the fault adds one."""
        return [self.begin, *tokens] if self.fault.adds_begin else tokens


class Dialect(ABC):
    """How one kind of server is asked and answers. It keeps no state: options alone."""

    @abstractmethod
    def routes(self) -> Mapping[tuple[str, str], Handler]:
        """What answers a method and a path."""

    @abstractmethod
    def failure(self, status: int) -> Any:
        """The body of an error of the server's own, such as 429, 500 and 503."""

    @abstractmethod
    def wrong_key(self, key: str) -> RefusedError:
        """The refusal of a key; "" if none was sent."""

    def not_found(self, path: str) -> RefusedError:
        """The refusal of a path that the server does not have (FastAPI's)."""
        return RefusedError(404, {"detail": "Not Found"})


def chat_text(messages: Sequence[Mapping[str, str]]) -> str:
    """A chat as the imitated models read it: a line a message, then the beginning of the answer."""
    return "".join(f"{message['role']}: {message['content']}\n" for message in messages) + "assistant:"


def bias_of(bias: Any) -> dict[int, float]:
    """What is added to the logits of some tokens: a dictionary by ids (as text), or pairs of an id and a number."""
    pairs = bias.items() if isinstance(bias, dict) else bias or []
    return {int(token): float(number) for token, number in pairs}

"""Conversations: messages of which the last one of the user is answered.

Works on texts; knows nothing of tokens, passages or models.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ralm.lm.tokenizer import last_of_user
from ralm.records import Message


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in their order, of which the last one of the user is answered.

    Passages are put into that message, as the prompt says. They are found with `query`; None is the text of the
    message.
    """

    messages: Sequence[Message]
    query: str | None = None

    @classmethod
    def of(cls, asked: "str | Conversation") -> "Conversation":
        """A question as a conversation of one message; a conversation as it is."""
        return cls((Message("user", asked),)) if isinstance(asked, str) else asked

    @property
    def question(self) -> str:
        """The message that is answered; ChatError if no message is of the user."""
        return self.messages[last_of_user(self.messages)].content

    @property
    def searched(self) -> str:
        """What passages are found with."""
        return self.question if self.query is None else self.query

    @property
    def is_one_message(self) -> bool:
        """Whether nothing was said but the question."""
        return len(self.messages) == 1

    def asking(self, text: str) -> "Conversation":
        """The same conversation with this text as the message that is answered."""
        place = last_of_user(self.messages)
        asked = replace(self.messages[place], content=text)
        return replace(self, messages=(*self.messages[:place], asked, *self.messages[place + 1 :]))

"""The chat template of a tokenizer: messages as text, and what it writes around a message of the user.

Works on text; knows nothing of token ids or models.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

from transformers import PreTrainedTokenizerBase

from ralm.errors import ModelError
from ralm.lm.local.files import first_line

_SAMPLE: Final = "ralm-message"


class ChatTemplate:
    """Writes the beginning of a chat, in which the user has sent one message and the model is to answer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def parts(self, message: str) -> tuple[str, str, str]:
        """The text before the message, the message as the template writes it, and the text after it.

        Raises ModelError if the template fails, or changes more of the message than the white space around it.
        """
        written = self._written(message)
        for _ in range(2):  # a template may write the date, which changes at midnight
            before, after = self._around
            kept = written[len(before) : len(written) - len(after)]
            if before + kept + after == written and kept.strip() == message.strip():
                return before, kept, after
            del self._around
        raise ModelError(
            f"the chat template of this model changes the message {message[:40]!r}: choose another `prompt`."
        )

    @cached_property
    def _around(self) -> tuple[str, str]:
        before, found, after = self._written(_SAMPLE).partition(_SAMPLE)
        if not found:
            raise ModelError("the chat template of this model leaves out the user's message: choose another `prompt`.")
        return before, after

    def _written(self, message: str) -> str:
        chat = [{"role": "user", "content": message}]
        return write_chat(self._tokenizer, chat, "the chat template of this model fails", add_generation_prompt=True)


def write_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]], failure: str, **how: Any) -> str:
    """Messages as the tokenizer's chat template writes them; ModelError, which begins with `failure`, if it fails."""
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **how))
    except Exception as error:  # a template is a program of its own, with any error
        raise ModelError(f"{failure}: {first_line(error)}") from error

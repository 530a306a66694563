"""What a request for a chat does: the last message of the user is answered, with passages in it.

A generator of events, for a thread; knows nothing of HTTP.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ralm.answering.citations import Answerer, SourcedAnswer
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import Conversation, QuestionPrompt, open_prompt
from ralm.answering.sources import AskedRetriever, QuestionSource, RerankedPassages
from ralm.errors import ChatError, LengthError, UsageError
from ralm.lm.tokenizer import full_tokenizer, has_chat_template
from ralm.protocols import Tokenizer, WritingModel
from ralm.serving.completion import Began, Ended, Wrote
from ralm.serving.errors import RequestError
from ralm.serving.indexes import ReadConfig
from ralm.serving.model import Check, Watched
from ralm.serving.options import Limits, generation_of
from ralm.serving.prompts import TOO_LONG, check_size
from ralm.serving.scoring import check_scores
from ralm.validation import MAX_SEED

_SHARE: Final = 4
"""An answer has at most one of so many parts of what the model reads at once, if a request does not say."""
_IDLE: Final = ("stride", "query_tokens", "document_tokens")
"""Choices that change nothing in a chat: passages are found once, with the whole message, and read whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """What is asked for: `times` answers to a conversation, each of `new_tokens` tokens at most (None: a quarter of
    what the model reads).

    With `measured`, the answers are scored without passages too, so that they cite what gave something. `likeliest` is
    how many likely tokens are listed for each token. `sampling` holds the options of `ralm.reading.Sampling`
    and `stop`.
    """

    conversation: Conversation
    new_tokens: int | None
    times: int
    measured: bool
    likeliest: int = 0
    sampling: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """An answer with what each of its passages gave to it."""

    choice: int
    answer: SourcedAnswer


ChatEvent: TypeAlias = Began | Wrote | Ended | Answered


def answered(
    asked: Chat, model: WritingModel, reads: ReadConfig, prompt: QuestionPrompt, limits: Limits, check: Check
) -> Iterator[ChatEvent]:
    """Do what is asked, event by event; the choices have the seeds from that of `sampling` on.

    Raises RequestError if the conversation cannot be asked or does not fit, UsageError if the model cannot answer so.
    """
    length = min(reads.settings.plan.max_length, limits.prompt_tokens or reads.settings.plan.max_length)
    watched = Watched(model, check)
    said = [one.content.strip() for one in asked.conversation.messages if one.role == "user"]  # no template drops these
    check_size(said, model.tokenizer, length, "messages")
    try:
        own = _own_tokens(asked.conversation, model.tokenizer, prompt)
        options = _options(asked, prompt, _new_tokens(asked, own, limits, length), length)
        answerer = Answerer(
            watched,
            prompt,
            _source(reads, watched),
            reader=reads.reader,
            options=options,
            credit="passages" if asked.measured else "none",
        )
        seeds = [(options.seed + time) % (MAX_SEED + 1) for time in range(asked.times)]
        streams = answerer.streams(asked.conversation, seeds)
    except LengthError as error:
        raise RequestError(str(error), param="messages", code=TOO_LONG) from None
    except ChatError as error:
        raise RequestError(str(error), param="messages") from None
    yield Began((), own)
    for choice, piece in streams:
        yield Wrote(choice, piece)
    for choice in range(asked.times):
        answer = streams.sourced(choice)
        yield Ended(choice, "stop" if streams.is_complete(choice) else "length", len(answer.answer.tokens))
        if reads.source is not None:
            yield Answered(choice, answer)


def _source(reads: ReadConfig, model: WritingModel) -> QuestionSource | None:
    """Where the passages come from."""
    if reads.source is None:
        return None
    if reads.reranker is None:
        return AskedRetriever(reads.source)
    return RerankedPassages(reads.source, reads.reranker, model, generation_of(reads.settings))


def open_chat_prompt(name: str) -> QuestionPrompt:
    """The prompt of chats, by name or from a file; raises what `open_prompt` raises, and UsageError if it is for
    questions with choices."""
    prompt = open_prompt(name)
    if prompt.shows_choices:
        raise UsageError(f"the `prompt` {name} shows choices, which a chat does not have: give another one.")
    return prompt


def check_chat(model: WritingModel, prompt: QuestionPrompt, choice: Mapping[str, Any], *, logprobs: bool) -> None:
    """Raise RequestError if the model cannot do what a chat asks for, or if a request chooses something that changes
    nothing in a chat."""
    if logprobs and model.tier == "text":
        raise RequestError(
            f"the model {model.name} tells no log-probabilities: leave out `logprobs`.", param="logprobs"
        )
    if choice.get("gain"):
        check_scores(model)
    if prompt.chat and not has_chat_template(model.tokenizer):
        raise RequestError(
            f"the model {model.name} has no chat template: ask /v1/completions, or have the server started with a "
            "`--prompt` that needs none.",
            code="no_chat_template",
        )
    for name in _IDLE:
        if name in choice:
            raise RequestError(f"`{name}` does nothing in a chat: leave it out.", param=f"ralm.{name}")


def _options(asked: Chat, prompt: QuestionPrompt, new_tokens: int, length: int) -> AnswerOptions:
    """How answers are drawn, in a model that reads `length` tokens. Behind a prompt that is no chat, models do not end
    an answer by themselves: without stop strings, it ends with the line, as in `ralm ask`."""
    sampling = dict(asked.sampling)
    if not (prompt.chat or sampling["stop"]):
        sampling["stop"] = AnswerOptions().stop
    return AnswerOptions(new_tokens=new_tokens, max_length=length, likeliest=asked.likeliest, **sampling)


def _new_tokens(asked: Chat, own: int, limits: Limits, length: int) -> int:
    """The most tokens of an answer to a conversation of so many tokens, by default what fits of a share of all.

    Raises RequestError if the conversation does not fit beside it, before any passage is looked for.
    """
    usual = min(length // _SHARE, limits.new_tokens or length, length - own)
    new_tokens = max(1, usual) if asked.new_tokens is None else asked.new_tokens
    if own + new_tokens > length:
        raise RequestError(
            f"the messages have {own:,} tokens and {new_tokens:,} are to be written, together {own + new_tokens:,}; at "
            f"most {length:,} fit here: shorten them to {max(0, length - new_tokens):,} tokens, or lower `max_tokens`.",
            param="messages",
            code=TOO_LONG,
        )
    return new_tokens


def _own_tokens(conversation: Conversation, tokenizer: Tokenizer, prompt: QuestionPrompt) -> int:
    """How many tokens a conversation has without passages."""
    chat = full_tokenizer(tokenizer).encode_chat(conversation.messages) if prompt.chat else None
    return len(tokenizer.encode(conversation.question) if chat is None else chat[0])

"""The work of a request for a chat: answers the last message of the user with passages, as a generator of events."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from ralm.answering import citations, prompts, sources
from ralm.answering.options import AnswerOptions
from ralm.errors import ChatError, LengthError, UsageError
from ralm.lm.tokenizer import full_tokenizer, has_chat_template
from ralm.serving import completion, errors, indexes, scoring
from ralm.serving.model import SharedModel
from ralm.serving.options import Limits, continuation_options
from ralm.serving.prompts import TOO_LONG, check_size
from ralm.validation import MAX_SEED

_SHARE: Final = 4
"""By default an answer has at most this fraction, 1/4, of the tokens that the model reads at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletion:
    """A request: `times` answers to a conversation, each of at most `new_tokens` tokens (None: a quarter of the tokens
    that the model reads).

    With `measured`, the answers are also scored without passages, so that they cite the passages that helped; None: if
    the model can do so.
    `logprobs` returns the log-probability of each token, and `top_logprobs` that many top ones. With `sources_as_text`,
    the sources also stand behind the text. `sampling` holds the options of `ralm.reading.Sampling` and `stop`.
    """

    conversation: prompts.Conversation
    new_tokens: int | None
    times: int
    measured: bool | None
    logprobs: bool
    top_logprobs: int
    sources_as_text: bool
    sampling: dict[str, Any]


def answer_chat(
    chat: ChatCompletion, model: SharedModel, reads: indexes.ReadConfig, prompt: prompts.QuestionPrompt, limits: Limits
) -> Iterator[completion.Event]:
    """The events of a chat; the seeds of its choices count up from the one in `sampling`.

    Raises RequestError if the conversation is not valid or does not fit, UsageError if the model cannot answer so.
    """
    _check(chat, model, prompt)
    length = min(reads.settings.plan.max_length, limits.prompt_tokens or reads.settings.plan.max_length)
    questions = [one.content.strip() for one in chat.conversation.messages if one.role == "user"]
    check_size(questions, model, length, "messages")  # every template keeps the messages of the user
    try:
        encoded = full_tokenizer(model.tokenizer).encode_chat(chat.conversation.messages) if prompt.chat else None
        own = len(model.tokenizer.encode(chat.conversation.question) if encoded is None else encoded[0])
        options = _options(chat, prompt, _new_tokens(chat, own, limits, length), length)
        credit: citations.Credit = "none" if chat.measured is False else "passages"
        source = _source(reads, model)
        answerer = citations.Answerer(model, prompt, source, reader=reads.reader, options=options, credit=credit)
        seeds = [(options.seed + time) % (MAX_SEED + 1) for time in range(chat.times)]
        streams = answerer.streams(chat.conversation, seeds)
    except LengthError as error:
        raise errors.RequestError(str(error), param="messages", code=TOO_LONG) from None
    except ChatError as error:
        raise errors.RequestError(str(error), param="messages") from None
    yield completion.Began((), own)
    for choice, piece in streams:
        yield completion.Wrote(choice, piece)
    for choice in range(chat.times):
        answer = streams.with_sources(choice)
        reason: Literal["stop", "length"] = "stop" if streams.is_complete(choice) else "length"
        yield completion.Ended(choice, reason, len(answer.answer.tokens), answer=answer if reads.source else None)


def _source(reads: indexes.ReadConfig, model: SharedModel) -> sources.QuestionSource | None:
    """The source of passages; None for a model without an index."""
    if reads.source is None:
        return None
    if reads.reranker is None:
        return sources.QuestionRetriever(reads.source)
    return sources.RerankedPassages(reads.source, reads.reranker, model, continuation_options(reads.settings))


def open_chat_prompt(name: str) -> prompts.QuestionPrompt:
    """The prompt of chats, by name or from a file.

    Raises what `open_prompt` raises, and UsageError for a prompt of multiple choice.
    """
    prompt = prompts.open_prompt(name)
    if prompt.shows_choices:
        raise UsageError(f"the `prompt` {name} is for questions with choices: give another one.")
    return prompt


def _check(chat: ChatCompletion, model: SharedModel, prompt: prompts.QuestionPrompt) -> None:
    """Raise RequestError if the model cannot do what a chat requests."""
    if chat.logprobs and model.tier == "text":
        raise errors.RequestError(
            f"the model {model.name} returns no log-probabilities: leave out `logprobs`.", param="logprobs"
        )
    if chat.measured:
        scoring.check_scores(model)
    if prompt.chat and not has_chat_template(model.tokenizer):
        raise errors.RequestError(
            f"the model {model.name} has no chat template: use /v1/completions, or start the server with a `--prompt` "
            "that needs none.",
            code="no_chat_template",
        )


def _options(chat: ChatCompletion, prompt: prompts.QuestionPrompt, new_tokens: int, length: int) -> AnswerOptions:
    """The options of an answer. With a prompt that is no chat, models do not end an answer by themselves: without stop
    strings, it ends with the line, as in `ralm ask`."""
    sampling = dict(chat.sampling)
    if not (prompt.chat or sampling["stop"]):
        sampling["stop"] = AnswerOptions().stop
    return AnswerOptions(new_tokens=new_tokens, max_length=length, top_logprobs=chat.top_logprobs, **sampling)


def _new_tokens(chat: ChatCompletion, own: int, limits: Limits, length: int) -> int:
    """The maximum number of tokens of an answer to a conversation of `own` tokens.

    Raises RequestError if the conversation does not fit beside it, before passages are retrieved.
    """
    usual = min(length // _SHARE, limits.new_tokens or length, length - own)
    new_tokens = max(1, usual) if chat.new_tokens is None else chat.new_tokens
    if own + new_tokens > length:
        raise errors.RequestError(
            f"the messages have {own:,} tokens and `max_tokens` is {new_tokens:,}, together {own + new_tokens:,}; the "
            f"limit is {length:,}: shorten the messages to {max(0, length - new_tokens):,} tokens, or lower "
            "`max_tokens`.",
            param="messages",
            code=TOO_LONG,
        )
    return new_tokens

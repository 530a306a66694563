"""Chats: answers the last message of the user with passages, as a generator of events, and makes the response of them,
whole or in pieces, with its sources."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from pydantic import JsonValue

from ralm.answering import answerer, prompts
from ralm.answering.options import AnswerOptions
from ralm.answering.prompt_reader import open_prompt
from ralm.errors import ChatError, LengthError, UsageError
from ralm.lm.tokenizer import full_tokenizer, has_chat_template
from ralm.reading.sampling import GenerationOptions
from ralm.records import Passage
from ralm.serving import answers, errors, indexes, text_sources
from ralm.serving.model import SharedModel
from ralm.serving.options import Limits
from ralm.serving.prompts import TokenLabels, check_size, most_bytes
from ralm.validation import MAX_SEED

_SHARE: Final = 4
"""By default an answer has at most this fraction, 1/4, of the tokens that the model reads at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletion:
    """A request: `times` answers to a conversation, each of at most `new_tokens` tokens (None: a quarter of what the
    model reads). With `measured` they are scored without passages too, to cite those that helped; None: if the model
    can. `sampling` is as for completions."""

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
) -> Iterator[answers.Event]:
    """Return the events of a chat; the seeds of its choices count up from the one in `sampling`. Raises RequestError if
    the conversation is not valid or does not fit, UsageError if the model cannot answer so."""
    if prompt.chat and not has_chat_template(model.tokenizer):
        raise errors.RequestError(
            f"the model {model.name} has no chat template: use /v1/completions, or start the server with a `--prompt` "
            "that needs none.",
            code="no_chat_template",
        )
    length = min(reads.settings.plan.max_length, limits.prompt_tokens or reads.settings.plan.max_length)
    messages = chat.conversation.messages
    # every template keeps the messages of the user
    check_size([one.content.strip() for one in messages if one.role == "user"], length, "messages")
    errors.check_bytes([one.content for one in messages], max(limits.text_bytes, most_bytes(length)), "messages")
    try:
        encoded = full_tokenizer(model.tokenizer).encode_chat(chat.conversation.messages) if prompt.chat else None
        own = len(model.tokenizer.encode(chat.conversation.question) if encoded is None else encoded[0])
        options = _options(chat, prompt, _new_tokens(chat, own, limits, length), length)
        answers_of = answerer.Answerer(
            model,
            prompt,
            reads.source,
            parts=reads.parts,
            options=options,
            measured=chat.measured is not False,
            ranking=GenerationOptions.of(reads.settings.plan),
        )
        seeds = [(options.seed + time) % (MAX_SEED + 1) for time in range(chat.times)]
        streams = answers_of.stream(chat.conversation, seeds)
    except LengthError as error:
        raise errors.RequestError(str(error), param="messages", code=errors.TOO_LONG) from None
    except ChatError as error:
        raise errors.RequestError(str(error), param="messages") from None
    yield answers.Began([0] * chat.times, streams.prompt_tokens, streams.passages)
    for choice, piece in streams:
        yield answers.Wrote(choice, piece)
    for choice in range(chat.times):
        answer = streams.with_sources(choice)
        reason: Literal["stop", "length"] = "stop" if streams.is_complete(choice) else "length"
        yield answers.Ended(choice, reason, len(answer.answer.tokens), answer=answer if reads.source else None)


def open_chat_prompt(name: str) -> prompts.QuestionPrompt:
    """The prompt of chats, by name or from a file; UsageError for a prompt of multiple choice."""
    prompt = open_prompt(name)
    if prompt.shows_choices:
        raise UsageError(f"the `prompt` {name} is for questions with choices: give another one.")
    return prompt


def _options(chat: ChatCompletion, prompt: prompts.QuestionPrompt, new_tokens: int, length: int) -> AnswerOptions:
    """Return the options of an answer; without a chat template or stop strings, it ends with the line."""
    sampling = dict(chat.sampling)
    if not (prompt.chat or sampling["stop"]):
        sampling["stop"] = AnswerOptions().stop
    return AnswerOptions(new_tokens=new_tokens, max_length=length, top_logprobs=chat.top_logprobs, **sampling)


def _new_tokens(chat: ChatCompletion, own: int, limits: Limits, length: int) -> int:
    """The maximum number of tokens of an answer to a conversation of `own` tokens; RequestError if it has no room."""
    usual = min(length // _SHARE, limits.new_tokens or length, length - own)
    new_tokens = max(1, usual) if chat.new_tokens is None else chat.new_tokens
    if own + new_tokens > length:
        raise errors.RequestError(
            f"the messages have {own:,} tokens and `max_tokens` is {new_tokens:,}, together {own + new_tokens:,}; the "
            f"limit is {length:,}: shorten the messages to {max(0, length - new_tokens):,} tokens, or lower "
            "`max_tokens`.",
            param="messages",
            code=errors.TOO_LONG,
        )
    return new_tokens


class ChatAnswer(answers.ServedAnswer):
    """Makes the response to a request for a chat; `address` returns the URL of a passage."""

    kind = "chat.completion"
    piece_kind = "chat.completion.chunk"
    id_prefix = "chatcmpl"
    unused_config = ("stride",)

    def __init__(
        self,
        chat: ChatCompletion,
        events: Iterator[answers.Event],
        reads: indexes.ReadConfig,
        names: TokenLabels,
        address: Callable[[Passage], str],
        *,
        model: str,
    ) -> None:
        super().__init__(events, reads, names, model=model)
        self._chat = chat
        self._address = address

    def _choice_json(self, number: int, choice: answers.ResponseChoice) -> answers.ResponseJson:
        behind, annotations = self._cited(choice)
        message: answers.ResponseJson = {
            "role": "assistant",
            "content": choice.text + behind,
            "refusal": None,
            "annotations": annotations,
        }
        logprobs = self._logprobs_json(choice.tokens)
        return {"index": number, "message": message, "logprobs": logprobs, "finish_reason": choice.reason}

    def _begin_json(self, number: int) -> Sequence[answers.ResponseJson]:
        return [self._delta(number, {"role": "assistant", "content": "", "refusal": None})]

    def _piece_json(self, number: int, added: answers.ResponseChoice) -> answers.ResponseJson:
        return self._delta(number, {"content": added.text}, added.tokens)

    def _end_json(self, number: int, choice: answers.ResponseChoice) -> Sequence[answers.ResponseJson]:
        behind, annotations = self._cited(choice)
        end = self._delta(number, {"annotations": annotations} if annotations else {}, reason=choice.reason)
        return [self._delta(number, {"content": behind}), end] if behind else [end]

    def _delta(
        self, number: int, delta: answers.ResponseJson, tokens: Sequence[answers.Token] = (), reason: str | None = None
    ) -> answers.ResponseJson:
        listed = self._logprobs_json(tokens) if tokens else None
        return {"index": number, "delta": delta, "logprobs": listed, "finish_reason": reason}

    def _logprobs_json(self, tokens: Sequence[answers.Token]) -> JsonValue:
        """The `logprobs` of some tokens, if requested."""
        if not self._chat.logprobs:
            return None
        content: list[JsonValue] = [
            {
                **self._with_name(token.token, token.log_prob),
                "top_logprobs": [self._with_name(*one) for one in token.top_logprobs],
            }
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def _with_name(self, token: int, log_prob: float | None) -> answers.ResponseJson:
        name = self._names.of(token)
        encoded: list[JsonValue] = [*name.encode()]
        is_text = name != self._names.of(token, as_id=True)
        return {"token": name, "logprob": answers.log_prob_json(log_prob), "bytes": encoded if is_text else None}

    def _cited(self, choice: answers.ResponseChoice) -> tuple[str, list[JsonValue]]:
        """The sources that stand behind a text, if requested, and the parts of the text that come from passages."""
        answer = None if choice.end is None else choice.end.answer
        sources = () if answer is None else answer.sources
        behind = text_sources.sources_text(sources, self._address) if self._chat.sources_as_text else ""
        return behind, text_sources.annotations(sources, self._address)

    def _url(self, passage: Passage) -> str:
        return self._address(passage)

    def _choice_sources(self, choice: answers.ResponseChoice, *, with_tokens: bool) -> answers.ResponseJson:
        """Return the sources, with all tokens if asked for, or if pieces could not have their shared passages."""
        answer = None if choice.end is None else choice.end.answer
        assert answer is not None, "chats with an index end with it"
        self._note([one.passage.number for one in answer.sources])
        is_late = bool(choice.tokens) and len(answer.sources) > len(choice.tokens[0].passages_K)
        given, gain_T = answer.text.provenance, answer.text.gain_T
        rows = zip(choice.tokens, given.passages_TK, given.posteriors_TK, strict=True)
        credited = [replace(token, passages_K=numbers_K, posteriors_K=shares_K) for token, numbers_K, shares_K in rows]
        tokens: answers.ResponseJson = {"tokens": self._tokens_json(credited)} if with_tokens or is_late else {}
        gain: answers.ResponseJson = {} if np.isnan(gain_T).all() else answers.gain_json(given, gain_T)
        sources: list[JsonValue] = [one.as_json() for one in answer.sources]
        return {**tokens, **gain, "sources": sources, "cut": answer.cut.documents}

"""Chats: answers the last message of the user with passages, and makes the response, with its sources."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from pydantic import JsonValue

from ralm.answering import answerer, prompts
from ralm.answering.answers import AnswerStreams
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import open_prompt
from ralm.errors import ChatError, LengthError, UsageError
from ralm.lm.tokenizer import full_tokenizer, has_chat_template
from ralm.reading.pieces import GeneratedToken
from ralm.reading.sampling import GenerationOptions
from ralm.records import Passage
from ralm.serving import answers, errors, indexes, text_sources
from ralm.serving.model import SharedModel, label_by_id
from ralm.serving.options import Limits
from ralm.serving.prompts import check_size, most_bytes
from ralm.serving.requests import ChatRequest
from ralm.validation import MAX_SEED

_SHARE: Final = 4
"""By default an answer has at most this fraction, 1/4, of the tokens that the model reads at once."""


def open_chat_prompt(name: str) -> prompts.QuestionPrompt:
    """Return the prompt of chats, by name or from a file; UsageError for a prompt of multiple choice."""
    prompt = open_prompt(name)
    if prompt.shows_choices:
        raise UsageError(f"the `prompt` {name} is for questions with choices: give another one.")
    return prompt


def _new_tokens(requested: int | None, asked: int, limits: Limits, length: int) -> int:
    """Return the maximum number of tokens of an answer to `asked` tokens; RequestError if it has no room."""
    usual = min(length // _SHARE, limits.new_tokens or length, length - asked)
    new_tokens = max(1, usual) if requested is None else requested
    if asked + new_tokens > length:
        raise errors.RequestError(
            f"the messages have {asked:,} tokens and `max_tokens` is {new_tokens:,}, together {asked + new_tokens:,}; "
            f"the limit is {length:,}: shorten the messages to {max(0, length - new_tokens):,} tokens, or lower "
            "`max_tokens`.",
            param="messages",
            code=errors.TOO_LONG,
        )
    return new_tokens


class ChatAnswer(answers.ServedAnswer[ChatRequest]):
    """Makes the response to a request for a chat; `address` returns the URL of a passage."""

    kind = "chat.completion"
    piece_kind = "chat.completion.chunk"
    id_prefix = "chatcmpl"
    unused_config = ("stride",)

    def __init__(
        self,
        body: ChatRequest,
        model: SharedModel,
        reads: indexes.ReadConfig,
        limits: Limits,
        prompt: prompts.QuestionPrompt,
        address: Callable[[Passage], str],
    ) -> None:
        super().__init__(body, model, reads, limits)
        self._prompt = prompt
        self._address = address

    def _write(self) -> Iterator[answers.WrittenText]:
        """Write the choices, whose seeds count up; RequestError if the conversation is not valid or does not fit."""
        try:
            streams = self._streams()
        except LengthError as error:
            raise errors.RequestError(str(error), param="messages", code=errors.TOO_LONG) from None
        except ChatError as error:
            raise errors.RequestError(str(error), param="messages") from None
        self.prompt_tokens, self._shared = streams.prompt_tokens, streams.passages
        self._choices = [answers.WrittenText(number) for number in range(self._body.n)]
        yield from (answers.WrittenText(choice.number) for choice in self._choices)
        for number, piece in streams:
            self._choices[number].drawn += len(piece.tokens)
            yield from self._choices[number].add([piece])
        for number, choice in enumerate(self._choices):
            choice.answer = streams.with_sources(number)
            choice.reason = "stop" if streams.is_complete(number) else "length"

    def _streams(self) -> AnswerStreams[answerer.SourcedAnswer]:
        body, model, prompt, limits, reads = self._body, self._model, self._prompt, self._limits, self._reads
        body.check(limits)
        conversation = body.conversation
        if prompt.chat and not has_chat_template(model.tokenizer):
            raise errors.RequestError(
                f"the model {model.name} has no chat template: use /v1/completions, or start the server with a "
                "`--prompt` that needs none.",
                code="no_chat_template",
            )
        length = min(reads.settings.plan.max_length, limits.prompt_tokens or reads.settings.plan.max_length)
        messages = conversation.messages
        # every template keeps the messages of the user
        check_size([message.content.strip() for message in messages if message.role == "user"], length, "messages")
        most = max(limits.text_bytes, most_bytes(length))
        errors.check_bytes([message.content for message in messages], most, "messages")
        encoded = full_tokenizer(model.tokenizer).encode_chat(messages) if prompt.chat else None
        asked = len(model.tokenizer.encode(conversation.question) if encoded is None else encoded[0])
        sampling = body.sampling()
        if not (prompt.chat or sampling["stop"]):  # without a chat template, an answer ends with the line
            sampling["stop"] = AnswerOptions().stop
        new_tokens = _new_tokens(body.new_tokens, asked, limits, length)
        options = AnswerOptions(new_tokens=new_tokens, max_length=length, top_logprobs=body.top_logprobs, **sampling)
        answers_of = answerer.Answerer(
            model,
            prompt,
            reads.source,
            parts=reads.parts,
            options=options,
            measured=body.chosen.get("gain") is not False,
            ranking=GenerationOptions.of(reads.settings.plan),
        )
        seeds = [(options.seed + time) % (MAX_SEED + 1) for time in range(body.n)]
        return answers_of.stream(conversation, seeds)

    def _choice_json(self, choice: answers.WrittenText) -> answers.ResponseJson:
        behind, annotations = self._cited(choice)
        message: answers.ResponseJson = {
            "role": "assistant",
            "content": choice.text + behind,
            "refusal": None,
            "annotations": annotations,
        }
        logprobs = self._logprobs_json(choice.tokens)
        return {"index": choice.number, "message": message, "logprobs": logprobs, "finish_reason": choice.reason}

    def _piece_json(self, added: answers.WrittenText) -> answers.ResponseJson:
        begins = not (added.text or added.tokens)
        delta: answers.ResponseJson = (
            {"role": "assistant", "content": "", "refusal": None} if begins else {"content": added.text}
        )
        return self._delta(added.number, delta, added.tokens)

    def _end_json(self, choice: answers.WrittenText) -> Sequence[answers.ResponseJson]:
        behind, annotations = self._cited(choice)
        end = self._delta(choice.number, {"annotations": annotations} if annotations else {}, reason=choice.reason)
        return [self._delta(choice.number, {"content": behind}), end] if behind else [end]

    def _delta(
        self, number: int, delta: answers.ResponseJson, tokens: Sequence[GeneratedToken] = (), reason: str | None = None
    ) -> answers.ResponseJson:
        listed = self._logprobs_json(tokens) if tokens else None
        return {"index": number, "delta": delta, "logprobs": listed, "finish_reason": reason}

    def _logprobs_json(self, tokens: Sequence[GeneratedToken]) -> JsonValue:
        """Return the `logprobs` of tokens, if requested."""
        if not self._body.logprobs:
            return None
        content: list[JsonValue] = [
            {
                **self._with_name(token.token, token.log_prob),
                "top_logprobs": [self._with_name(*pair) for pair in token.top_logprobs],
            }
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def _with_name(self, token: int, log_prob: float) -> answers.ResponseJson:
        name = self._label(token)
        encoded: list[JsonValue] = [*name.encode()]
        is_text = name != label_by_id(token)
        return {"token": name, "logprob": answers.log_prob_json(log_prob), "bytes": encoded if is_text else None}

    def _cited(self, choice: answers.WrittenText) -> tuple[str, list[JsonValue]]:
        """Return the sources to stand behind a text, if requested, and the annotations of its parts."""
        sources = [] if choice.answer is None else choice.answer.sources
        behind = (
            text_sources.sources_text(sources, self._address)
            if self._body.ralm and self._body.ralm.sources == "text"
            else ""
        )
        return behind, text_sources.annotations(sources, self._address)

    def _url(self, passage: Passage) -> str:
        return self._address(passage)

    def _choice_sources(self, choice: answers.WrittenText, *, with_tokens: bool) -> answers.ResponseJson:
        """Return the sources, with all tokens if asked for, or if pieces could not have their shared passages."""
        answer = choice.answer
        assert answer is not None, "all choices have ended"
        self._note([source.passage.number for source in answer.sources])
        is_late = bool(choice.tokens) and len(answer.sources) > len(choice.tokens[0].passages_K)
        provenance, gain_T = answer.text.provenance, answer.text.gain_T
        rows = zip(choice.tokens, provenance.passages_TK, provenance.posteriors_TK, strict=True)
        credited = [replace(token, passages_K=numbers_K, posteriors_K=shares_K) for token, numbers_K, shares_K in rows]
        tokens: answers.ResponseJson = {"tokens": self._tokens_json(credited)} if with_tokens or is_late else {}
        gain: answers.ResponseJson = {} if np.isnan(gain_T).all() else answers.gain_json(provenance, gain_T)
        sources: list[JsonValue] = [source.as_json() for source in answer.sources]
        return {**tokens, **gain, "sources": sources, "cut": answer.cut.documents}

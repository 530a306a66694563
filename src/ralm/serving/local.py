"""A language model that runs here: its routes for completions and chats, and how chats are answered."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import Annotated, Any, Final, TypeAlias, cast

import numpy as np
from fastapi import APIRouter, Depends, Request
from prometheus_client import Gauge
from pydantic import JsonValue
from starlette.responses import Response

from ralm.answering import answerer, prompts
from ralm.answering.answers import AnswerStreams
from ralm.answering.options import AnswerOptions
from ralm.errors import ChatError, LengthError, UsageError
from ralm.grammar import OwnPart
from ralm.lm.scoring import Scorer
from ralm.lm.tokenizer import full_tokenizer, has_chat_template
from ralm.pipeline import open_pipeline
from ralm.protocols import LanguageModel, Reranker, WritingModel
from ralm.reading.generate import generate
from ralm.reading.pieces import GeneratedToken
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from ralm.reranking import RERANKERS, PredictiveOptions
from ralm.reranking.predictive import CrossEncoder
from ralm.serving import answers, errors, jobs, requests, state
from ralm.serving.completion import CompletionAnswer
from ralm.serving.model import Locked, SharedModel, label_by_id
from ralm.serving.options import MAX_TEXT_BYTES, Settings, check_stride_fits, with_length
from ralm.settings import PipelineOptions
from ralm.validation import MAX_SEED

_ROUTER: Final = APIRouter(dependencies=[Depends(jobs.check_query)])
_SHARE: Final = 4
"""By default an answer has at most this fraction, 1/4, of the tokens that the model reads at once."""


class LocalService(state.ModelService):
    """A model that runs here, and reads passages of indexes; `ranker` is the model that the reranker names."""

    routers = (_ROUTER,)

    def __init__(
        self,
        model: WritingModel,
        served: state.Served,
        *,
        ranker: LanguageModel | None = None,
        max_length: int | None = None,
    ) -> None:
        super().__init__(model.name.rstrip("/").rpartition("/")[2] or model.name, served)
        self.model = SharedModel(model, cached_tokens=self.options.limits.cached_tokens)
        self.settings = with_length(self.settings, model, max_length)
        self.prompt = open_chat_prompt(self.options.prompt or "chat")
        self.can = {"chat": not self.prompt.chat or has_chat_template(model.tokenizer), "turns": self.prompt.chat}
        self._ranker = None if ranker is None else Scorer(ranker, progress=False)
        part = RERANKERS.parse(self.settings.reading.rerank)
        self._cross_encoder = part.load() if isinstance(part, PredictiveOptions) else None
        self._reranking = RLock()
        if (blocks := getattr(model, "blocks", None)) is not None:
            description = "Tokens of prompts that were read, not found among the kept ones."
            gauge = Gauge("ralm_passage_cache_read", description, registry=self.metrics.registry)
            gauge.set_function(lambda: blocks.read)
        self.reads({})  # fail at startup if a retriever cannot be opened

    def warm_up(self) -> None:
        """Generate a token, so that the first request does not wait for compiling."""
        reads = self.reads({})
        options = GenerationOptions.of(self.settings.plan, new_tokens=1)
        deque(generate("The first request must not wait.", self.model, options, reads.source, reads.parts), maxlen=0)

    def check_health(self) -> None:
        """Raise RequestError if the model has failed."""
        if self.model.batcher.failed is not None:
            message = "the language model has failed: see the log, and restart the server."
            raise errors.RequestError(message, status=503)

    def close(self) -> None:
        """End the thread that reads for requests."""
        self.model.close()

    def reads(self, choice: Mapping[str, Any], *, in_strides: bool = True) -> state.ReadConfig:
        """Return how a request with these choices reads, in strides unless it is a chat; RequestError if it cannot."""
        settings = self._chosen(choice)
        try:
            if in_strides and settings.index is not None:
                check_stride_fits(settings)
            if settings.index is None:
                return state.ReadConfig(settings)
            source = self._source(settings)
            return state.ReadConfig(settings, source, self._parts(settings, source))
        except UsageError as error:
            raise state.choice_error(error, choice) from None

    def _parts(self, settings: Settings, source: FromRetriever) -> state.NotedParts:
        """Return the parts of a request, which share loaded models; raises what `open_pipeline` raises."""
        model = cast("WritingModel", self.model)
        options = PipelineOptions(lm=self.model.name, retrieval=settings.retrieval, reading=settings.reading)
        parts = open_pipeline(
            options,
            source=source,
            load=lambda name, _: cast("LanguageModel", self._ranker) if name == settings.reading.ranker else model,
            load_pairs=lambda _: cast("CrossEncoder", self._cross_encoder),
        ).parts
        reranker = parts.reranker
        if reranker is not None and isinstance(RERANKERS.parse(settings.reading.rerank), PredictiveOptions | OwnPart):
            reranker = cast("Reranker", Locked(reranker, self._reranking))  # requests share it
        return state.NotedParts(reader=parts.reader, mixer=parts.mixer, reranker=reranker)


def open_chat_prompt(name: str) -> prompts.QuestionPrompt:
    """Return the prompt of chats, by name or from a file; UsageError for a prompt of multiple choice."""
    prompt = prompts.open_prompt(name)
    if prompt.shows_choices:
        raise UsageError(f"the `prompt` {name} is for questions with choices: give another one.")
    return prompt


class ChatAnswer(answers.ServedAnswer[requests.ChatRequest]):
    """Makes the response to a request for a chat, whose passages stand in a `prompt`."""

    kind = "chat.completion"
    piece_kind = "chat.completion.chunk"
    id_prefix = "chatcmpl"
    unused_config = ("stride",)

    def __init__(self, *of_all: Any, prompt: prompts.QuestionPrompt) -> None:
        super().__init__(*of_all)
        self._prompt = prompt

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
        length = reads.settings.plan.max_length
        messages = conversation.messages
        asked_texts = [message.content.strip() for message in messages if message.role == "user"]
        errors.check_bytes(asked_texts, errors.most_bytes(length), "messages")  # every template keeps these
        most = max(MAX_TEXT_BYTES, errors.most_bytes(length))
        errors.check_bytes([message.content for message in messages], most, "messages")
        encoded = full_tokenizer(model.tokenizer).encode_chat(messages) if prompt.chat else None
        asked = len(model.tokenizer.encode(conversation.question) if encoded is None else encoded[0])
        sampling = body.sampling()
        if not (prompt.chat or sampling["stop"]):  # without a chat template, an answer ends with the line
            sampling["stop"] = AnswerOptions().stop
        usual = max(1, min(length // _SHARE, limits.new_tokens or length, length - asked))
        new_tokens = usual if body.new_tokens is None else body.new_tokens
        errors.check_room("messages", asked, new_tokens, length)
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
            answers.sources_text(sources, self._address)
            if self._body.ralm and self._body.ralm.sources == "text"
            else ""
        )
        return behind, answers.annotations(sources, self._address)

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


_Local: TypeAlias = Annotated[LocalService, Depends(jobs.service_of)]


@_ROUTER.post("/v1/completions")
async def completions(request: Request, body: requests.CompletionRequest, service: _Local) -> Response:
    """Continue prompts, or score them (`echo`), with passages in front."""

    def begin() -> CompletionAnswer:
        reads = service.reads(service.chosen(body))
        return CompletionAnswer(body, service.model, reads, service.options.limits, answers.web_address)

    return await jobs.respond_with_text(request, body, begin)


@_ROUTER.post("/v1/chat/completions")
async def chats(request: Request, body: requests.ChatRequest, service: _Local) -> Response:
    """Answer the last message of the user in a conversation, with passages in it; a local model calls no tools."""

    def begin() -> ChatAnswer:
        reads = service.reads(service.chosen(body), in_strides=False)
        address = partial(jobs.passage_address, request, reads)
        return ChatAnswer(body, service.model, reads, service.options.limits, address, prompt=service.prompt)

    return await jobs.respond_with_text(request, body, begin)

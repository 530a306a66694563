"""A language model that runs here: what it can do, and its routes for completions and chats."""

from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final, TypeAlias

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from ralm.errors import UsageError
from ralm.lm.tokenizer import has_chat_template
from ralm.protocols import LanguageModel, WritingModel
from ralm.reading.generate import generate
from ralm.reading.sampling import GenerationOptions
from ralm.serving import chat, completion, errors, indexes, jobs, requests
from ralm.serving.audit import entry_of
from ralm.serving.model import SharedModel
from ralm.serving.options import CHOICES, check_stride_fits, with_length
from ralm.serving.state import ModelService, Served, choice_error

_ROUTER: Final = APIRouter(dependencies=[Depends(jobs.check_query)])
_BLOCK_FIGURES: Final = {
    "found": ("reused", "Tokens of prompts whose keys and values were kept."),
    "read": ("read", "Tokens of prompts that were read."),
    "held": ("kept_bytes", "Bytes of keys and values that are held."),
}
_BATCH_FIGURES: Final = {
    "steps": "Steps in which texts were read together.",
    "texts": "Texts in these steps.",
    "seconds": "Seconds of these steps.",
    "passes": "Prompts, or parts of them, that were scored.",
}
"""The attributes of the batcher, with descriptions."""


class LocalService(ModelService):
    """A model that runs here, and reads passages of indexes; `ranker` is the model that the reranker names."""

    routers = (_ROUTER,)
    may_choose = CHOICES

    def __init__(
        self, model: WritingModel, served: Served, *, ranker: LanguageModel | None = None, max_length: int | None = None
    ) -> None:
        super().__init__(model.name.rstrip("/").rpartition("/")[2] or model.name, served)
        self.model = SharedModel(model, cached_tokens=self.options.limits.cached_tokens)
        self.settings = with_length(self.settings, model, max_length)
        self._rerankers = indexes.Rerankers(self.settings.reading, ranker)
        self.prompt = chat.open_chat_prompt(self.options.prompt or "chat")
        self.can = {"chat": not self.prompt.chat or has_chat_template(model.tokenizer), "turns": self.prompt.chat}
        for name, description in _BATCH_FIGURES.items():
            self.metrics.watch(f"batch_{name}", description, partial(getattr, self.model.batcher, name))
        if (blocks := getattr(model, "blocks", None)) is not None:
            for name, (figure, description) in _BLOCK_FIGURES.items():
                self.metrics.watch(f"passage_cache_{name}", description, partial(getattr, blocks, figure))
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

    def reads(self, choice: Mapping[str, Any], *, in_strides: bool = True) -> indexes.ReadConfig:
        """Return how a request with these choices reads, in strides unless it is a chat; RequestError if it cannot."""
        settings = self._chosen(choice)
        try:
            if in_strides and settings.index is not None:
                check_stride_fits(settings)
            if settings.index is None:
                return indexes.ReadConfig(settings)
            source = self._source(settings)
            return indexes.ReadConfig(settings, source, self._rerankers.parts(self.model, settings, source))
        except UsageError as error:
            raise choice_error(error, choice) from None


_Local: TypeAlias = Annotated[LocalService, Depends(jobs.service_of)]


@_ROUTER.post("/v1/completions")
async def completions(request: Request, body: requests.CompletionRequest, service: _Local) -> Response:
    """Continue prompts, or score them (`echo`), with passages in front."""

    def begin() -> completion.CompletionAnswer:
        reads = service.reads(service.chosen(body))
        entry_of(request).prompts = [*body.prompt]
        return completion.CompletionAnswer(body, service.model, reads, service.options.limits)

    return await jobs.respond_with_text(request, body, begin)


@_ROUTER.post("/v1/chat/completions")
async def chats(request: Request, body: requests.ChatRequest, service: _Local) -> Response:
    """Answer the last message of the user in a conversation, with passages in it; a local model calls no tools."""

    def begin() -> chat.ChatAnswer:
        reads = service.reads(service.chosen(body), in_strides=False)
        entry_of(request).prompts = [body.conversation.question]
        address = partial(jobs.passage_address, request, reads)
        return chat.ChatAnswer(body, service.model, reads, service.options.limits, service.prompt, address)

    return await jobs.respond_with_text(request, body, begin)

"""POST /v1/chat/completions, and GET /passages/INDEX/NUMBER, where the sources of answers can be read."""

from collections.abc import Iterator

from fastapi import APIRouter, Request
from pydantic import JsonValue
from starlette.responses import Response

from ralm.records import Passage
from ralm.serving.chat import answered, check_chat
from ralm.serving.errors import RequestError
from ralm.serving.routes.answering import Served, stream, told, whole
from ralm.serving.service import Service
from ralm.serving.wire.chat_answers import ChatAnswer
from ralm.serving.wire.chats import ChatRequest, chat_of
from ralm.serving.wire.sources import passage_told
from ralm.serving.workers import Check, Job

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat(request: Request, body: ChatRequest, service: Served) -> Response:
    """Answer the last message of the user in a conversation, with passages in it."""
    job = _job(request, body, service)
    return await (stream if body.stream else whole)(request, job)


@router.get("/passages/{index}/{number}")
async def passage(index: str, number: int, service: Served) -> dict[str, JsonValue]:
    """A passage of an index."""
    passages = service.indexes.index(index).passages if index in service.indexes.names else ()
    if not 0 <= number < len(passages):
        raise RequestError(f"there is no passage {number} of an index {index!r} here.", status=404)
    return passage_told(passages[number])


def _job(request: Request, body: ChatRequest, service: Service) -> Job:
    def job(check: Check) -> Iterator[bytes]:
        choice = service.chosen(body.model, body.chosen)
        limits = service.options.limits
        asked = chat_of(body, limits)
        reads = service.reads(choice, in_strides=False)
        check_chat(service.model, service.prompt, choice, logprobs=bool(body.logprobs))
        service.log_prompts([asked.conversation.question])

        def address(one: Passage) -> str:
            return str(request.url_for("passage", index=reads.settings.index, number=one.number))

        answer = ChatAnswer(
            asked,
            reads,
            service.names,
            address,
            model=body.model,
            logprobs=bool(body.logprobs),
            sources_as_text=body.sources_as_text,
        )
        events = answered(asked, service.model, reads, service.prompt, limits, check)
        yield from told(service, body, answer, events)

    return job

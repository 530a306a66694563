"""POST /v1/completions."""

from collections.abc import Iterator

from fastapi import APIRouter, Request
from starlette.responses import Response

from ralm.serving.completion import check_sources, completed
from ralm.serving.routes.answering import Served, stream, told, whole
from ralm.serving.service import Service
from ralm.serving.wire.answers import CompletionAnswer
from ralm.serving.wire.completions import CompletionRequest, Head, completion_of
from ralm.serving.workers import Check, Job

router = APIRouter()


@router.post("/v1/completions")
async def complete(request: Request, body: CompletionRequest, service: Served) -> Response:
    """Continue prompts, or score them (`echo`), with passages in front."""
    job = _job(body, service)
    return await (stream if body.stream else whole)(request, job)


def _job(body: CompletionRequest, service: Service) -> Job:
    def job(check: Check) -> Iterator[bytes]:
        choice = service.chosen(body.model, body.chosen)
        limits = service.options.limits
        asked = completion_of(body, limits)
        reads = service.reads(choice)
        check_sources(asked, reads.settings)
        service.log_prompts(asked.prompts)
        answer = CompletionAnswer(
            Head(body.model),
            asked,
            reads,
            service.names,
            logprobs=body.logprobs is not None,
            as_ids=bool(body.return_tokens_as_token_ids),
        )
        events = completed(asked, service.model, reads, limits, check)
        yield from told(service, body, answer, events)

    return job

"""A server that speaks vLLM's API, waits a given time for each request, and then answers at once.

It answers any number of requests at the same time, in a process of its own, so that it does not limit a client. The
probabilities of its model do not depend on the text: answers are joined from pieces that are made once. They are as
large as vLLM's.
"""

import asyncio
import json
import math
import multiprocessing
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

MODEL = "instant"
MOST_LISTED = 20
LIKELIEST, LESS = math.log(0.38), math.log(0.61)
"""The log-probability of the likeliest token, and what each further one has in addition."""
_PROMPT = "@"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class InstantModel:
    """A vocabulary by its texts. Token 0 is the likeliest, then 1 and so on, whatever stands before."""

    def __init__(self, texts: Sequence[str], max_length: int) -> None:
        self._texts = texts
        self._max_length = max_length
        self._places: dict[int, list[str]] = {}

    def models(self) -> str:
        """What GET /models answers."""
        return json.dumps({"data": [{"id": MODEL, "owned_by": "vllm", "max_model_len": self._max_length}]})

    def completion(self, body: dict[str, Any]) -> tuple[int, str]:
        """The status and answer of POST /completions: token 0 is written; `prompt_logprobs` if they are wanted."""
        prompt, new, count = body["prompt"], body["max_tokens"], body.get("logprobs")
        if (count or 0) > MOST_LISTED:
            return 400, json.dumps({"error": {"message": f"at most {MOST_LISTED} logprobs", "code": 400}})
        choice = {
            "text": self._texts[0] * new,
            "finish_reason": "length",
            "logprobs": None if count is None else _written(new, body.get("logprob_token_ids") or range(count)),
            "prompt_logprobs": _PROMPT,
        }
        usage = {"prompt_tokens": len(prompt), "completion_tokens": new}
        answer = json.dumps({"model": MODEL, "choices": [choice], "usage": usage})
        return 200, answer.replace(f'"{_PROMPT}"', self._of_prompt(prompt, body.get("prompt_logprobs")))

    def _of_prompt(self, prompt: Sequence[int], count: int | None) -> str:
        if count is None:
            return "null"
        if count not in self._places:
            self._places[count] = [self._place(token, count) for token in range(len(self._texts))]
        places = self._places[count]
        return f"[{','.join(['null', *(places[token] for token in prompt[1:])])}]"

    def _place(self, token: int, count: int) -> str:
        """What is told where a token stands in a prompt."""
        return json.dumps({one: self._told(one) for one in {token, *range(count)}})

    def _told(self, token: int) -> dict[str, Any]:
        return {"logprob": log_prob(token), "rank": token + 1, "decoded_token": self._texts[token]}


def log_prob(token: int) -> float:
    """The natural log-probability of a token."""
    return LIKELIEST + token * LESS


def _written(count: int, listed: Iterable[int]) -> dict[str, Any]:
    """What is told of this many new tokens."""
    return {
        "tokens": ["token_id:0"] * count,
        "token_logprobs": [log_prob(0)] * count,
        "top_logprobs": [{f"token_id:{token}": log_prob(token) for token in {0, *listed}}] * count,
    }


@contextmanager
def instant_server(texts: Sequence[str], max_length: int, seconds: float) -> Iterator[str]:
    """The name of the model of such a server, which takes this long for each request."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(InstantModel(texts, max_length), seconds, there), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}#{MODEL}"
    finally:
        process.terminate()
        process.join()


def _serve(model: InstantModel, seconds: float, tell: Connection) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # the client has gone
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                body = await reader.readexactly(int(length[1])) if length else b""
                if body:
                    await asyncio.sleep(seconds)
                status, answer = model.completion(json.loads(body)) if body else (200, model.models())
                content = answer.encode()
                writer.write(b"HTTP/1.1 %d -\r\nContent-Type: application/json\r\n" % status)
                writer.write(b"Content-Length: %d\r\n\r\n" % len(content) + content)
                await writer.drain()

    async def live() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        tell.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(live())

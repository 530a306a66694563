"""What passing requests on costs: a chat API that streams a word every 20 ms, straight and through `ralm serve`.

    python -m benchmarks.serving.proxy [--clients 1 32] [--requests 96]

Milliseconds to the first word and to the end of an answer, median and 99th percentile, of streams that so many clients
ask for at once, and of the differences between the two answers to a question. Questions are parts of the held-out text
of the demonstration, each with four passages of its index. The API and the server are processes of their own.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator

import numpy as np
from openai import AsyncOpenAI

from benchmarks.measuring import print_table, serve, server
from benchmarks.serving.demonstration import demonstration
from tests.serving.chat_upstream import NAME, ChatUpstream

SECONDS_A_WORD = 0.02
COMMAND = "from benchmarks.serving.proxy import serve_api; serve_api()"


def serve_api() -> None:
    """Serve the API until the process ends."""
    upstream = ChatUpstream(SECONDS_A_WORD)
    print(f"serving {NAME} at {upstream.server.url}", file=sys.stderr, flush=True)
    upstream.server.wait(3_600)


async def stream_answer(client: AsyncOpenAI, question: str) -> tuple[float, float]:
    """Return the milliseconds to the first word and to the end of an answer."""
    begin, first = time.perf_counter(), 0.0
    stream = await client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": question}], stream=True
    )
    async for piece in stream:
        if not first and piece.choices and piece.choices[0].delta.content:
            first = time.perf_counter()
    return 1e3 * (first - begin), 1e3 * (time.perf_counter() - begin)


async def ask_at_once(url: str, questions: list[str]) -> list[tuple[float, float]]:
    """Return the times of questions that are asked at once, each over a connection of its own."""
    async with AsyncOpenAI(base_url=url, api_key="none", timeout=600, max_retries=0) as client:
        await asyncio.gather(*(stream_answer(client, question) for question in questions))  # connects
        return await asyncio.gather(*(stream_answer(client, question) for question in questions))


def rows(urls: dict[str, str], questions: list[str], clients: int) -> Iterator[dict[str, object]]:
    """Yield the times of so many clients at each of two addresses, and the differences.

    Each group of questions is asked at both addresses before the next one, so that other load meets both.
    """
    answers: dict[str, list[tuple[float, float]]] = {name: [] for name in urls}
    for group, begin in enumerate(range(0, len(questions), clients)):
        for name in [*urls] if group % 2 else [*urls][::-1]:
            answers[name] += asyncio.run(ask_at_once(urls[name], questions[begin : begin + clients]))
    straight, through = (np.array(answers[name]) for name in urls)
    for name, times in (*zip(urls, (straight, through), strict=True), ("difference", through - straight)):
        figures = {
            f"{event}, p{percent}, ms": float(np.percentile(times[:, column], percent))
            for column, event in enumerate(("first word", "end"))
            for percent in (50, 99)
        }
        yield {"clients": clients, "asked": name, **figures}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", nargs="+", type=int, default=(1, 32))
    parser.add_argument("--requests", type=int, default=96)
    args = parser.parse_args()
    with demonstration() as material, server([sys.executable, "-c", COMMAND]) as api:
        lm = ("--lm", f"{api.url}#{NAME}", "--index", material.index, "--reader", "concatenation", "--documents", 4)
        with server(serve(*lm, "--limits", "requests_at_once=64")) as running:
            urls = {"straight": api.url, "through ralm serve": running.url}
            questions = material.prompts(args.requests, 24)
            print_table(row for clients in args.clients for row in rows(urls, questions, clients))


if __name__ == "__main__":
    main()

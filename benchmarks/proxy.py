"""What passing requests on costs: a chat API that streams a word every 20 ms, straight and through `ralm serve`.

    python -m benchmarks.proxy [--clients 1 32] [--requests 96] [--demo FOLDER]

Milliseconds to the first word and to the end of an answer, median and 99th percentile, of streams that so many clients
ask for at once, and of the differences between the two answers to a question. Questions are parts of the held-out text
of the demonstration, each with four passages of its index. The API and the server are processes of their own.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path

import numpy as np
from openai import AsyncOpenAI

from benchmarks.api.material import material_of, print_table
from benchmarks.serving import SERVING, program, prompts_of
from tests.serving.chat_upstream import NAME, ChatUpstream

SECONDS_A_WORD = 0.02
COMMAND = "from benchmarks.proxy import serve_api; serve_api()"


def serve_api() -> None:
    """Serve the API until the process ends."""
    upstream = ChatUpstream(SECONDS_A_WORD)
    print(f"serving {NAME} at {upstream.server.url}", file=sys.stderr, flush=True)
    upstream.server.wait(3_600)


async def streamed(client: AsyncOpenAI, question: str) -> tuple[float, float]:
    """Milliseconds to the first word and to the end of one answer."""
    begin, first = time.perf_counter(), 0.0
    stream = await client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": question}], stream=True
    )
    async for piece in stream:
        if not first and piece.choices and piece.choices[0].delta.content:
            first = time.perf_counter()
    return 1e3 * (first - begin), 1e3 * (time.perf_counter() - begin)


async def asked(url: str, questions: list[str]) -> list[tuple[float, float]]:
    """The figures of questions that are asked at once, each over a connection of its own."""
    async with AsyncOpenAI(base_url=url, api_key="none", timeout=600, max_retries=0) as client:
        await asyncio.gather(*(streamed(client, question) for question in questions))  # connects
        return await asyncio.gather(*(streamed(client, question) for question in questions))


async def measured(urls: dict[str, str], questions: list[str], clients: int) -> list[dict[str, object]]:
    """The figures of so many clients, by address, and of the differences between answers to the same question.

    Each group of questions is asked at all addresses before the next one, so that other load meets all of them.
    """
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in urls}
    for group, begin in enumerate(range(0, len(questions), clients)):
        for name in [*urls] if group % 2 else [*urls][::-1]:
            found[name] += await asked(urls[name], questions[begin : begin + clients])
    straight, through = (np.array(found[name]) for name in urls)
    times = dict(zip(urls, (straight, through), strict=True)) | {"difference": through - straight}
    return [
        {"clients": clients, "asked": name}
        | {
            f"{what}, {label}": float(np.percentile(values[:, column], percent))
            for column, what in enumerate(("first word", "end"))
            for label, percent in (("p50", 50), ("p99", 99))
        }
        for name, values in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", nargs="+", type=int, default=(1, 32))
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--demo", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, object]] = []
    with material_of(args.demo) as material, program([sys.executable, "-c", COMMAND], SERVING) as api:
        questions = prompts_of(material, args.requests, 24)
        serve = [sys.executable, "-m", "ralm", "serve", "--lm", f"{api[2]}#{NAME}", "--index", str(material.index)]
        options = ["--port", "0", "--limits", "requests_at_once=64", "--reader", "concatenation", "--documents", "4"]
        with program([*serve, *options], SERVING) as ours:
            for clients in args.clients:
                urls = {"straight": api[2], "through ralm serve": ours[2]}
                rows += asyncio.run(measured(urls, questions, clients))
    print_table(rows)


if __name__ == "__main__":
    main()

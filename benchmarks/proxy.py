"""What passing requests on costs: a chat API that streams a word every 20 ms, straight and through `ralm serve`.

    python -m benchmarks.proxy [--clients 1 32] [--requests 96] [--demo FOLDER]

Milliseconds to the first word and to the end of an answer, median and 99th percentile, of streams that so many clients
ask for at once. Questions are parts of the held-out text of the demonstration, each with four passages of its index.
The API and the server are processes of their own.
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


async def measured(url: str, questions: list[str], clients: int) -> dict[str, object]:
    """The figures of so many clients that ask one question after another."""
    places = asyncio.Semaphore(clients)
    async with AsyncOpenAI(base_url=url, api_key="none", timeout=600, max_retries=0) as client:

        async def ask(question: str) -> tuple[float, float]:
            async with places:
                return await streamed(client, question)

        await asyncio.gather(*map(ask, questions[:clients]))
        first, end = np.array(await asyncio.gather(*map(ask, questions))).T
    columns = {"first word": first, "end": end}
    return {
        f"{name}, {what}": float(np.percentile(times, percent))
        for name, times in columns.items()
        for what, percent in (("p50", 50), ("p99", 99))
    }


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
        options = ["--port", "0", "--max-concurrency", "64", "--reader", "concatenation", "--documents", "4"]
        with program([*serve, *options], SERVING) as ours:
            for clients in args.clients:
                for name, url in (("straight", api[2]), ("through ralm serve", ours[2])):
                    rows.append({"clients": clients, "asked": name} | asyncio.run(measured(url, questions, clients)))
                    print_table(rows[-1:])
    print_table(rows)


if __name__ == "__main__":
    main()

"""Requests at once against one after another, and how long a first token takes.

    python -m benchmarks.serving.batching [--models gpt2 ralm-tiny] [--documents 0 1 10] [--strides 4 64] ...

Each client sends a completion of 64 new tokens for its own prompt of 64; the ratio is that of tokens a second. Passages
are those of the demonstration, found every `stride` tokens; 64 means once. `gpt2` has GPT-2 124M's shape and random
weights. The last columns: short requests (16 new tokens) come one after another while the other clients send prompts of
600 tokens; the milliseconds to their first token, the median and the 99th percentile, and the median alone.
"""

import argparse
import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from openai import AsyncOpenAI

from benchmarks.measuring import Server, print_table, random_model, serve, server
from benchmarks.serving.demonstration import Demonstration, demonstration

NEW_TOKENS, SHORT_NEW, LONG_TOKENS = 64, 16, 600


@dataclass(frozen=True)
class Load:
    """Requests to a server; `reading` is what they say of passages."""

    name: str
    client: AsyncOpenAI
    reading: dict[str, Any]

    async def tokens(self, prompt: str) -> int:
        """Return the number of tokens that are written for a prompt."""
        answer = await self.client.completions.create(
            model=self.name, prompt=prompt, max_tokens=NEW_TOKENS, temperature=0, extra_body={"ralm": self.reading}
        )
        assert answer.usage is not None
        return answer.usage.completion_tokens

    async def rate(self, prompts: Sequence[str], clients: int) -> float:
        """Return the tokens a second with so many requests under way."""
        places = asyncio.Semaphore(clients)

        async def ask(prompt: str) -> int:
            async with places:
                return await self.tokens(prompt)

        begin = time.perf_counter()
        written = await asyncio.gather(*map(ask, prompts))
        return sum(written) / (time.perf_counter() - begin)

    async def first_token(self, prompt: str) -> float:
        """Return the milliseconds to the first token of a short request."""
        begin, first = time.perf_counter(), 0.0
        stream = await self.client.completions.create(
            model=self.name,
            prompt=prompt,
            max_tokens=SHORT_NEW,
            temperature=0,
            stream=True,
            extra_body={"ralm": self.reading},
        )
        async for _ in stream:
            first = first or time.perf_counter() - begin
        return 1000 * first

    async def busy_first_tokens(self, short: list[str], long: list[str], clients: int) -> list[float]:
        """Return those of short requests, one after another, while clients send long ones."""

        async def send(prompts: list[str]) -> None:
            for prompt in cycle(prompts):
                await self.tokens(prompt)

        tasks = [asyncio.create_task(send(long[place:] + long[:place])) for place in range(clients)]
        await asyncio.sleep(2)
        milliseconds = [await self.first_token(prompt) for prompt in short]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return milliseconds


async def measure(load: Load, material: Demonstration, args: argparse.Namespace) -> dict[str, object]:
    """Return the figures of a row."""
    prompts = material.prompts(args.requests, 64)
    alone = prompts[:: max(1, args.requests // args.alone)]
    await load.rate(prompts[:2], 2)
    slow = await load.rate(alone, 1)
    fast = await load.rate(prompts, args.clients)
    short, long = material.prompts(args.short, 32), material.prompts(args.clients, LONG_TOKENS)
    quiet = [await load.first_token(prompt) for prompt in short[:8]]
    busy = await load.busy_first_tokens(short, long, args.clients - 1)
    return {
        "tokens/s one by one": slow,
        f"tokens/s {args.clients} at once": fast,
        "ratio": fast / slow,
        "first token p50, ms": float(np.median(busy)),
        "p99": float(np.percentile(busy, 99)),
        "alone": float(np.median(quiet)),
    }


def readings(args: argparse.Namespace) -> Iterator[tuple[int, int | str, dict[str, object]]]:
    """Yield numbers of passages, strides, and what a request says to have them."""
    for documents in args.documents:
        if documents == 0:
            yield 0, "", {"index": None}
            continue
        for stride in args.strides:
            ensemble = {"reader": "ensemble", "documents": documents} if documents > 1 else {}
            yield documents, stride, {"stride": stride, **ensemble}


def rows(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield a row for each model and reading."""
    with demonstration() as material, random_model() as gpt2:
        for model in args.models:
            name = gpt2 if model == "gpt2" else model
            command = serve("--lm", name, "--index", material.index, "--limits", "requests_at_once=64")
            with server(command) as running:
                for documents, stride, reading in readings(args):
                    figures = asyncio.run(_asked(running, reading, material, args))
                    yield {"model": model, "documents": documents, "stride": stride, **figures}


async def _asked(
    running: Server, reading: dict[str, Any], material: Demonstration, args: argparse.Namespace
) -> dict[str, object]:
    async with AsyncOpenAI(base_url=running.url, api_key="none", timeout=600, max_retries=0) as client:
        return await measure(Load(running.model, client, reading), material, args)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=("gpt2", "ralm-tiny"), default=("gpt2", "ralm-tiny"))
    parser.add_argument("--documents", nargs="+", type=int, default=(0, 1, 10), help="passages; 0: no index")
    parser.add_argument("--strides", nargs="+", type=int, default=(4, NEW_TOKENS))
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=48, help="requests that are sent at once, in all")
    parser.add_argument("--alone", type=int, default=6, help="requests that are sent one after another")
    parser.add_argument("--short", type=int, default=40, help="short requests")
    print_table(rows(parser.parse_args()))


if __name__ == "__main__":
    main()

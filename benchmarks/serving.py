"""`ralm serve` under load: requests at once against one after another, and how long a first token takes.

    python -m benchmarks.serving [--models gpt2 ralm-tiny] [--documents 0 1 10] [--strides 4 64] [--outside] ...

Each of 16 clients sends a completion of 64 new tokens over HTTP. The ratio is that of tokens a second to the same
requests one after another. Every request has its own prompt of 64 tokens. Passages are found every `stride` tokens;
64 means once. When the best passages change, they and the text behind them are read again, as In-Context RALM does.
`gpt2` has GPT-2 124M's shape and random weights. The server is a process of its own; passages are those of the
demonstration (`--demo`, a folder of `ralm demo`; without it, one is made).

"searching, %" is the part of the time of requests one after another that they waited for searches: what retrieval adds
to a token, but for the passages that are read.

`--outside` asks `transformers serve` for the same without passages, as it is by default and with its continuous
batching.

The last columns: short requests (16 new tokens) come one after another while the other clients send prompts of 600
tokens; the milliseconds to their first token, the median and the 99th percentile, and the median alone.
"""

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from openai import AsyncOpenAI
from transformers import AutoModelForCausalLM, GPT2Config

from benchmarks.api.material import Material, material_of, print_table
from benchmarks.scoring import gpt2_tokenizer

NEW_TOKENS, SHORT_NEW, LONG_TOKENS = 64, 16, 600
SERVING = re.compile(r"serving (\S+) at (\S+)")
_RUNNING = re.compile(r"Uvicorn running on (\S+)")
_SECONDS = re.compile(r"^ralm_search_seconds (\S+)", re.MULTILINE)


@contextmanager
def program(command: list[str], said: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """What a program says when it is ready."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        found = next((found for line in process.stderr if (found := said.search(line))), None)
        assert found is not None, f"{command[0]} did not start"
        threading.Thread(target=process.stderr.read, daemon=True).start()  # or else the program waits to say more
        yield found
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:  # it still writes for clients that have gone
            process.kill()


@contextmanager
def served(model: str, index: Path) -> Iterator[tuple[str, str]]:
    """The name of a model that is served in a process of its own, and the address."""
    command = [sys.executable, "-m", "ralm", "serve", "--lm", model, "--index", str(index), "--port", "0"]
    with program([*command, "--limits", "requests_at_once=64"], SERVING) as found:
        yield found[1], found[2]


@contextmanager
def served_by_transformers(model: str, *options: str) -> Iterator[tuple[str, str]]:
    """The same by `transformers serve`."""
    command = [str(Path(sys.executable).with_name("transformers")), "serve", model, "--device", "cpu", "--port", "0"]
    with program([*command, *options], _RUNNING) as found:
        yield model, f"{found[1]}/v1"


@dataclass(frozen=True)
class Load:
    """Requests to a server: how they read."""

    name: str
    client: AsyncOpenAI
    how: dict[str, Any]

    async def tokens(self, prompt: str, new_tokens: int = NEW_TOKENS) -> int:
        """Tokens that are written for a prompt."""
        answer = await self.client.completions.create(
            model=self.name, prompt=prompt, max_tokens=new_tokens, temperature=0, extra_body=self.how
        )
        assert answer.usage is not None
        return answer.usage.completion_tokens

    async def searching(self) -> float:
        """Seconds that requests waited for searches, since the server began."""
        async with httpx.AsyncClient() as client:
            figures = await client.get(str(self.client.base_url.join("/metrics")))
        found = _SECONDS.search(figures.text)
        return float(found[1]) if found else 0.0

    async def rate(self, prompts: Sequence[str], clients: int) -> float:
        """Tokens a second with so many requests under way."""
        places = asyncio.Semaphore(clients)

        async def ask(prompt: str) -> int:
            async with places:
                return await self.tokens(prompt)

        begin = time.perf_counter()
        written = await asyncio.gather(*map(ask, prompts))
        return sum(written) / (time.perf_counter() - begin)

    async def first_token(self, prompt: str) -> float:
        """Milliseconds to the first token of a short request."""
        begin, first = time.perf_counter(), 0.0
        stream = await self.client.completions.create(
            model=self.name,
            prompt=prompt,
            max_tokens=SHORT_NEW,
            temperature=0,
            stream=True,
            extra_body=self.how,
        )
        async for _ in stream:
            first = first or time.perf_counter() - begin
        return 1000 * first

    async def first_tokens(self, short: list[str], long: list[str], clients: int) -> list[float]:
        """Those of short requests, one after another, while clients send long ones."""

        async def send(prompts: list[str]) -> None:
            for prompt in cycle(prompts):
                await self.tokens(prompt)

        others = [asyncio.create_task(send(long[place:] + long[:place])) for place in range(clients)]
        await asyncio.sleep(2)
        found = [await self.first_token(prompt) for prompt in short]
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        return found


def prompts_of(material: Material, count: int, tokens: int) -> list[str]:
    """Pieces of the held-out text, drawn at random."""
    tokenizer = material.model.tokenizer
    ids = tokenizer.encode(material.text)
    begins = np.random.default_rng(0).choice(len(ids) - tokens, count, replace=False)
    return [tokenizer.decode(ids[begin : begin + tokens]) for begin in begins.tolist()]


async def row(
    name: str, url: str, how: dict[str, Any], material: Material, args: argparse.Namespace
) -> dict[str, object]:
    """The figures of one way of reading."""
    async with AsyncOpenAI(base_url=url, api_key="none", timeout=600, max_retries=0) as client:
        return await figures(Load(name, client, how), material, args)


async def figures(load: Load, material: Material, args: argparse.Namespace) -> dict[str, object]:
    prompts = prompts_of(material, args.requests, 64)
    alone = prompts[:: max(1, args.requests // args.alone)]
    await load.rate(prompts[:2], 2)
    searched, begin = await load.searching(), time.perf_counter()
    slow = await load.rate(alone, 1)
    searching = (await load.searching() - searched) / (time.perf_counter() - begin)
    fast = await load.rate(prompts, args.clients)
    short, long = prompts_of(material, args.short, 32), prompts_of(material, args.clients, LONG_TOKENS)
    quiet = [await load.first_token(prompt) for prompt in short[:8]]
    busy = await load.first_tokens(short, long, args.clients - 1)
    return {
        "tokens/s one by one": slow,
        f"tokens/s {args.clients} at once": fast,
        "ratio": fast / slow,
        "searching, %": 100 * searching,
        "first token p50, ms": float(np.median(busy)),
        "p99": float(np.percentile(busy, 99)),
        "alone": float(np.median(quiet)),
    }


def ways(args: argparse.Namespace) -> Iterator[tuple[int, int | str, dict[str, object]]]:
    """Numbers of passages, strides, and what a request says to have them."""
    for documents in args.documents:
        if documents == 0:
            yield 0, "", {"index": None}
            continue
        for stride in args.strides:
            ensemble = {"reader": "ensemble", "documents": documents} if documents > 1 else {}
            yield documents, stride, {"stride": stride, **ensemble}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=("gpt2", "ralm-tiny"), default=("gpt2", "ralm-tiny"))
    parser.add_argument("--documents", nargs="+", type=int, default=(0, 1, 10), help="passages; 0: no index")
    parser.add_argument("--strides", nargs="+", type=int, default=(4, NEW_TOKENS))
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=48, help="requests that are sent at once, in all")
    parser.add_argument("--alone", type=int, default=6, help="requests that are sent one after another")
    parser.add_argument("--short", type=int, default=40, help="short requests")
    parser.add_argument("--outside", action="store_true", help="`transformers serve` too")
    parser.add_argument("--demo", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    rows: list[dict[str, object]] = []
    with material_of(args.demo) as material, tempfile.TemporaryDirectory() as folder:
        AutoModelForCausalLM.from_config(GPT2Config()).save_pretrained(folder)
        gpt2_tokenizer().save_pretrained(folder)

        def add(server: tuple[str, str], said: dict[str, object], how: dict[str, Any]) -> None:
            rows.append(said | asyncio.run(row(*server, how, material, args)))
            print_table(rows[-1:])

        for model in args.models:
            with served(folder if model == "gpt2" else model, material.index) as server:
                for documents, stride, how in ways(args):
                    add(server, {"model": model, "documents": documents, "stride": stride}, {"ralm": how})
        for options in [(), ("--continuous-batching",)] if args.outside else []:
            with served_by_transformers(folder, *options) as server:
                name = " ".join(["gpt2, transformers serve", *options])
                add(server, {"model": name, "documents": 0, "stride": ""}, {})
    print_table(rows)


if __name__ == "__main__":
    main()

"""What one process of `ralm serve` can pass on: requests, and events of streams, for each second of a processor.

    python -m benchmarks.proxy_load [--index DIR]

An API in this process answers at once, or streams a word every 20 ms; 32 clients ask over connections that stay open.
With an index, each question gets four passages. The seconds are those of the server's process, whatever else runs.
"""

import argparse
import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

WORDS = 200
CLIENTS = 32
BODY = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
MESSAGE = {"index": 0, "message": {"role": "assistant", "content": "It is deep [1]."}, "finish_reason": "stop"}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: "


def event(choice: dict[str, Any]) -> bytes:
    """An event of a stream as a chunk of HTTP."""
    content = b"data: " + json.dumps({**BODY, "choices": [{"index": 0, **choice}]}).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(content), content)


async def received(reader: asyncio.StreamReader) -> bytes:
    """The body of a request or a response."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if length := re.search(rb"content-length: (\d+)", head):
        return await reader.readexactly(int(length[1]))
    body = b""
    while b"transfer-encoding" in head and (size := int(await reader.readline(), 16)):
        body += (await reader.readexactly(size + 2))[:-2]
    if b"transfer-encoding" in head:
        await reader.readexactly(2)
    return body


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of a connection, as the API."""
    try:
        while True:
            body = await received(reader)
            if json.loads(body or b"{}").get("stream"):
                writer.write(HEAD + b"text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
                for _ in range(WORDS):
                    writer.write(event({"delta": {"content": " word"}, "finish_reason": None}))
                    await writer.drain()
                    await asyncio.sleep(0.02)
                writer.write(event({"delta": {}, "finish_reason": "stop"}) + b"0\r\n\r\n")
            else:
                content = json.dumps({**BODY, "choices": [MESSAGE]} if body else {"data": [{"id": "m"}]}).encode()
                writer.write(HEAD + b"application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def ask(port: int, requests: int, *, stream: bool) -> None:
    """Send requests one after the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in range(requests):
        question = {"role": "user", "content": f"What does the function number {number} return for an empty list?"}
        body = json.dumps({"model": "m", "messages": [question], "stream": stream}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        assert b'"error"' not in await received(reader)
    writer.close()


def processor_seconds(process: int) -> float:
    """The seconds of a processor that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def main() -> None:
    """Start the server, ask, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index")
    index = parser.parse_args().index
    upstream = await asyncio.start_server(answer, "127.0.0.1", 0)
    command = f"-m ralm serve --lm http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}#m --port 0".split()
    command += ["--limits", f"requests_at_once={CLIENTS}"]
    command += ["--index", index, "--reader", "concatenation", "--documents", "4"] if index else []
    server = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.PIPE)
    assert server.stderr is not None
    line = b""
    while b" at http" not in line:
        line = await server.stderr.readline()
        assert line, "the server ended"
    reading = asyncio.create_task(server.stderr.read())
    port = int(re.findall(rb":(\d+)/v1", line)[0])
    await ask(port, 20, stream=False)
    for stream, requests in ((False, 60), (True, 3)):
        before = processor_seconds(server.pid)
        await asyncio.gather(*(ask(port, requests, stream=stream) for _ in range(CLIENTS)))
        count = CLIENTS * requests * (WORDS if stream else 1)
        seconds = processor_seconds(server.pid) - before
        print(f"{count / seconds:,.0f} {'events of streams' if stream else 'whole answers'} a second of a processor")
    server.terminate()
    await reading
    await server.wait()


if __name__ == "__main__":
    asyncio.run(main())

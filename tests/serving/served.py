"""A server in this process, over loopback, and what the tests of serving ask it."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ralm import build_index
from ralm.corpus.splitting import make_passages
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.registry import load_local_model
from ralm.protocols import WritingModel
from ralm.records import Document
from ralm.serving.local import LocalService
from ralm.serving.options import ServeOptions, Settings
from ralm.serving.server import RalmServer, address_of, bound_socket
from ralm.serving.state import SearchService, Served

MODEL = "ralm-tiny"
DOCUMENTS = [
    Document("hill", "The Hill", "The dog keeps the sheep together on the green hill.", metadata={"url": "http://h"}),
    Document("sea", "The Sea", "The whales sing in the deep blue sea by night."),
    Document("town", "", "Fish, wool and bread are sold in the town."),
    Document("night", "", "By night the dog sleeps and the town is dark."),
    Document("open", "open", "The function open() opens a file and returns a file object. The mode w is for writing."),
]
PROMPTS = [
    "The function open() opens a",
    "By night the dog sleeps. The whales sing in the",
    "def read(self, size):\n    return self.file.",
    "caf\u00e9 \u2014 \u65e5\u672c \U0001f389 and the sea",
    "The",
    "The dog keeps the sheep together on the green hill. The town is dark, and fish are sold there by day. " * 3,
]


@cache
def tiny() -> LocalLanguageModel:
    """The built-in model."""
    return load_local_model(MODEL)


def save_index(folder: Path, documents: Sequence[Document] = DOCUMENTS) -> Path:
    """An index of a few documents."""
    build_index(make_passages(documents), folder)
    return folder


def served(options: ServeOptions | None = None, **changes: Any) -> Served:
    """What is served, by default no index to anybody."""
    usual = {"settings": Settings(), "folders": {}, "key": None, "audit": None}
    return Served(options=options or ServeOptions(), **{**usual, **changes})


def local(
    model: WritingModel, options: ServeOptions | None = None, *, max_length: int | None = None, **changes: Any
) -> LocalService:
    """A model that runs here, with what is served."""
    return LocalService(model, served(options, **changes), max_length=max_length)


@contextmanager
def serving(service: SearchService) -> Iterator[str]:
    """The address of a server of this service."""
    started, addresses = threading.Event(), list[str]()

    def ready(url: str) -> None:
        addresses.append(url)
        started.set()

    with bound_socket("127.0.0.1", 0) as listening:
        server = RalmServer(service, ready)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            assert started.wait(30)
            assert addresses == [address_of(listening)]
            yield addresses[0]
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


def events_of(text: str) -> list[Any]:
    """The JSON of server-sent events, up to the end that must come."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]

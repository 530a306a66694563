"""Signals that arrive while processes are started."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

import pytest

from ralm.processes import starting_processes


@pytest.fixture
def other_thread() -> Iterator[None]:
    """A thread that receives the signals that this one blocks."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait, daemon=True)
    thread.start()
    yield
    done.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.usefixtures("other_thread")
def test_a_signal_is_handled_after_the_processes_are_started(number: signal.Signals) -> None:
    handled: list[int] = []

    def handle(received: int, _frame: FrameType | None) -> None:
        handled.append(received)

    before = signal.signal(number, handle)
    try:
        with starting_processes():
            os.kill(os.getpid(), number)
            time.sleep(0.05)
            assert handled == []
        assert handled == [number]
        os.kill(os.getpid(), number)
        assert handled == [number, number]
    finally:
        signal.signal(number, before)

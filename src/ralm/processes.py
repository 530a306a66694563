"""Holds signals back where an exception would do harm."""

import gc
import signal
from collections.abc import Callable
from threading import current_thread, main_thread
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)


def collect_rarely() -> None:
    """Look for garbage rarely: almost all objects of imports stay, and looking takes a tenth of the time to start."""
    gc.set_threshold(20_000)


class HeldSignals:
    """A block that delays the handlers of signals that end the program to its end, or to `release`, in the main thread.

    What is made and removed in such a block is never left half done by an exception of a handler. Blocking signals in
    this thread is not enough: another thread may receive them, and Python still calls the handler in the main thread.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
        self._received: list[int] = []

    def __enter__(self) -> "HeldSignals":
        self.hold()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def hold(self) -> None:
        """Hold signals back (again)."""
        if current_thread() is main_thread():
            for number in _ENDING:
                handler = signal.getsignal(number)
                if callable(handler) and handler != self._note:
                    self._handlers[number] = handler
                    signal.signal(number, self._note)

    def release(self) -> None:
        """Call the handlers of signals that have arrived, and of those to come."""
        for number in [*self._handlers]:
            signal.signal(number, self._handlers[number])
            del self._handlers[number]
        while self._received:
            signal.raise_signal(self._received.pop())

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._received.append(number)

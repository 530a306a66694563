"""Holds signals back where an exception would do harm, and starts other processes, which ignore interrupts and end with
this one."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)


def collect_rarely() -> None:
    """Collect garbage after every 10,000 new objects instead of 700.

    Almost all objects that torch and transformers create during import stay, and going through them again and again
    takes a fifth of the time until a model is loaded.
    """
    gc.set_threshold(10_000)


class HeldSignals:
    """In this block, and in the main thread, handlers of signals that end the program are called late: when the block
    ends, or as soon as `release` is called.

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


@contextmanager
def starting_processes() -> Iterator[None]:
    """Start processes in this block. They ignore an interrupt and the end of the terminal; this process handles those.

    A process would print a traceback if it were interrupted while it loads, or if this process ended before it sent the
    first message. So this process handles signals after the block, and a new process handles SIGTERM only after it
    called `end_with_parent`.
    """
    with HeldSignals():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """Prepare a process that was started in `starting_processes`: it ends when its parent ends or is killed."""
    Thread(target=_wait_for_the_end_of_the_parent, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _wait_for_the_end_of_the_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

"""Starts other processes of this program, so that they ignore interrupts and end with it."""

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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


@contextmanager
def starting_processes() -> Iterator[None]:
    """Start processes in this block. They ignore an interrupt and the end of the terminal; this process handles those.

    A process would print a traceback if it were interrupted while it loads, or if this process ended before it sent the
    first message. So this process handles signals after the block, and a new process handles SIGTERM only after it
    called `end_with_parent`.
    """
    with ExitStack() as stack:
        if current_thread() is main_thread():
            stack.enter_context(_handled_later())
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        yield


@contextmanager
def _handled_later() -> Iterator[None]:
    """Call the handlers of signals that arrive in this block after it.

    Blocking signals in this thread is not enough: another thread may receive them, and Python still calls the handler
    in the main thread.
    """
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    handlers = {number: handler for number in _ENDING if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def end_with_parent() -> None:
    """Prepare a process that was started in `starting_processes`: it ends when its parent ends or is killed."""
    Thread(target=_wait_for_the_end_of_the_parent, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _wait_for_the_end_of_the_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

"""Ends the program on a signal as on an error, so that incomplete output is removed."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import NoReturn


@contextmanager
def signals_unwind() -> Iterator[None]:
    """Make SIGINT, SIGTERM and SIGHUP end the program with an exception and exit status 128 + the signal's number.

    A second signal of the same kind ends the program at once. Ignored signals, as under nohup, stay ignored. The status
    is the signal's even if cleaning up fails, as it may when the signal has ended the worker processes too.
    """
    if current_thread() is not main_thread():
        yield
        return
    received: list[int] = []

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        received.append(number)
        signal.signal(number, signal.SIG_DFL)
        sys.exit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else end)
    try:
        yield
    except BaseException:  # Ray makes a KeyboardInterrupt of ours
        if received:
            sys.exit(128 + received[0])
        raise
    else:
        if received:  # the exception was lost in code that ignores exceptions, such as a finalizer
            sys.exit(128 + received[0])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

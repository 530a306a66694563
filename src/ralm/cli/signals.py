"""How the program ends when it is told to: as it does on an error, so that what was half written is removed."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import NoReturn


@contextmanager
def signals_unwind() -> Iterator[None]:
    """Have SIGINT, SIGTERM and SIGHUP end the program by an exception, with exit status 128 and the signal's number.

    The same signal again ends it at once. One that is ignored, as under nohup, stays so.
    """
    if current_thread() is not main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else _end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)
    sys.exit(128 + number)

"""Prepares something slow in a background thread; callers that need it before it is ready do without.

The thread ends with the program: when the interpreter exits, it asks the thread to stop and waits only for its current
step.
"""

import atexit
import warnings
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

from ralm.errors import RalmError, RalmWarning

T = TypeVar("T")


class Beside(Generic[T]):
    """The result of `make`, which is called once, with a function that it must call between its steps.

    If memory runs out or a file is damaged, a RalmWarning is given and the result is never ready.
    """

    def __init__(self, make: Callable[[Callable[[], None]], T]) -> None:
        self._make = make
        self._made: T | None = None
        self._thread: Thread | None = None
        self._lock = Lock()
        self._stop = Event()

    def ready(self) -> T | None:
        """The result, or None while it is being made; the first call starts making it."""
        if self._made is None and self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = Thread(target=self._work, name="ralm-beside", daemon=True)
                    atexit.register(self._end)
                    self._thread.start()
        return self._made

    @property
    def begun(self) -> bool:
        """Whether anyone has asked for the result."""
        return self._thread is not None

    def wait(self) -> None:
        """Wait until the result is ready, if it is being made."""
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            self._made = self._make(self._go_on)
        except _StoppedError:
            return
        except (MemoryError, OSError, RalmError) as error:
            why = f"streams cannot be prepared ({error!r}); queries are scanned instead, which is slower."
            warnings.warn(why, RalmWarning, stacklevel=2)
        atexit.unregister(self._end)

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise _StoppedError

    def _end(self) -> None:
        self._stop.set()
        self.wait()


class _StoppedError(Exception):
    """The program is exiting."""

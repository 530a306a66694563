"""What takes long and can wait, made by a thread beside: whoever asks for it before it is ready goes without.

The thread dies with the program: it is asked to stop when the interpreter ends, which waits for the step at hand alone.
"""

import atexit
import warnings
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

from ralm.errors import RalmError, RalmWarning

T = TypeVar("T")


class Beside(Generic[T]):
    """Something that `make` gives; `make` is called once, with a function that it must call between its steps.

    Where memory does not suffice or a file is damaged there is a RalmWarning, and the thing is never ready.
    """

    def __init__(self, make: Callable[[Callable[[], None]], T]) -> None:
        self._make = make
        self._made: T | None = None
        self._thread: Thread | None = None
        self._lock = Lock()
        self._stop = Event()

    def ready(self) -> T | None:
        """It, or None while it is being made, which begins with the first call."""
        if self._made is None and self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = Thread(target=self._work, name="ralm-beside", daemon=True)
                    atexit.register(self._end)
                    self._thread.start()
        return self._made

    @property
    def begun(self) -> bool:
        """Whether anyone has asked for it."""
        return self._thread is not None

    def wait(self) -> None:
        """Wait until it is ready, if it is being made."""
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            self._made = self._make(self._go_on)
        except _StoppedError:
            return
        except (MemoryError, OSError, RalmError) as error:
            why = f"streams cannot be prepared ({error!r}): queries are scanned, which is slower."
            warnings.warn(why, RalmWarning, stacklevel=2)
        atexit.unregister(self._end)

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise _StoppedError

    def _end(self) -> None:
        self._stop.set()
        self.wait()


class _StoppedError(Exception):
    """The program ends."""

"""Several processes that answer requests at one address; each has the indexes open and shares their files in memory."""

import logging
import os
import signal
from collections.abc import Callable
from functools import partial
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection, wait
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Final, TypeAlias

from prometheus_client.multiprocess import mark_process_dead

from ralm.errors import RalmError
from ralm.processes import end_with_parent, starting_processes

_LOG: Final = logging.getLogger("ralm.serving")
_METRICS: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The folder in which the processes of prometheus_client add up their metrics."""
_NAME: Final = "ralm-server"
Serve: TypeAlias = Callable[[Callable[[str], None]], None]
"""Answers requests until SIGTERM, reloads on SIGHUP, and calls its argument with the address once it listens."""


class Supervisor:
    """Runs `serve`, which can be pickled, in `count` processes, and starts another one when a process dies.

    SIGTERM or SIGINT ends the processes after their requests, a second one at once; SIGHUP is passed on to them.
    `ready` is called with the address once all listen. Raises RalmError if a process ends before it listens.
    """

    def __init__(self, serve: Serve, count: int, ready: Callable[[str], None]) -> None:
        self._serve = serve
        self._count = count
        self._ready = ready
        self._processes: dict[Any, Any] = {}
        self._starting: dict[Connection, Any] = {}
        self._listening = 0
        self._ended_by: int | None = None
        self._failed = False

    def run(self) -> None:
        """Answer requests until a signal ends the server."""
        handlers = {signal.SIGTERM: self._end, signal.SIGINT: self._end, signal.SIGHUP: self._pass_on}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            with TemporaryDirectory(prefix="ralm-metrics-") as folder:
                os.environ[_METRICS] = folder
                for _ in range(self._count):
                    self._start()
                while self._processes:
                    for one in wait([*self._processes, *self._starting]):
                        if one in self._starting:
                            self._note_address(one)
                        elif one in self._processes:
                            self._note_end(one)
        finally:
            os.environ.pop(_METRICS, None)
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._failed:
            raise RalmError("a process of the server ended before it answered requests: see its message above.")

    def _start(self) -> None:
        context = get_context("spawn")
        receiving, sending = context.Pipe(duplex=False)
        with starting_processes():
            process = context.Process(target=_work, args=(self._serve, sending), name=_NAME)
            process.start()
        sending.close()
        self._processes[process.sentinel] = process
        self._starting[receiving] = process

    def _note_address(self, receiving: Any) -> None:
        process = self._starting.pop(receiving)
        try:
            address = receiving.recv()
        except EOFError:  # it ended before
            self._failed = self._failed or self._ended_by is None
            self._signal(signal.SIGTERM)
            return
        finally:
            receiving.close()
        self._listening += 1
        if self._listening == self._count:
            self._ready(address)
        elif self._listening > self._count:
            _LOG.info("process %d answers requests", process.pid)

    def _note_end(self, sentinel: Any) -> None:
        process = self._processes.pop(sentinel)
        process.join()
        mark_process_dead(process.pid)  # type: ignore[no-untyped-call]
        if self._ended_by is None and not self._failed and process not in self._starting.values():
            _LOG.error("process %d ended with status %s: another one is started", process.pid, process.exitcode)
            self._start()

    def _signal(self, number: int) -> None:
        for process in self._processes.values():
            os.kill(process.pid, number)

    def _end(self, number: int, _: FrameType | None) -> None:
        if self._ended_by is not None:
            for process in self._processes.values():
                process.kill()
            os._exit(128 + number)
        self._ended_by = number
        self._signal(signal.SIGTERM)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        self._signal(number)


def _work(serve: Serve, sending: Connection) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server handles it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    end_with_parent()
    serve(partial(_report, sending))


def _report(sending: Connection, address: str) -> None:
    sending.send(address)
    sending.close()


def is_one_of_several() -> bool:
    """Whether this is a process of a supervisor."""
    return current_process().name == _NAME


def reload_all() -> None:
    """Have all processes of the supervisor reload, if there is one."""
    if is_one_of_several():
        os.kill(os.getppid(), signal.SIGHUP)

"""Connects to a Ray cluster, and checks that its machines can do the job: their versions, and the shared folders."""

import logging
import os
import platform
import signal
import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, Final

os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")
"""Ray reads it when it is imported. Otherwise it prints on standard output that workers died, which is not ours."""

import ray  # noqa: E402

from ralm.errors import ClusterError  # noqa: E402
from ralm.version import __version__  # noqa: E402

AUTO: Final = "auto"
SEEN: Final = "seen"
"""What the names of markers begin with."""
_SECONDS_TO_ANSWER: Final = 5.0
_START: Final = "Start one with `ray start --head`, and `ray start --address=...` on its other machines"


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Use the cluster at an address, HOST:PORT, or the one that this machine belongs to (`auto`); one that this process
    is connected to already stays connected.

    Raises ClusterError if there is none, or if it runs other versions of Ray or Python.
    """
    if ray.is_initialized():
        yield
        return
    if address != AUTO:
        _check_answers(address)
    try:
        with own_signals():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError:
        if address != AUTO:
            raise ClusterError(
                f"what answers at {address} is no Ray cluster, or one with a token, which goes into RAY_AUTH_TOKEN."
            ) from None
        raise ClusterError(f"there is no Ray cluster on this machine. {_START}, or give an address.") from None
    except RuntimeError as error:
        if "mismatch" not in str(error):
            raise
        raise ClusterError(
            f"the cluster at {address} has other versions than this machine, which has Ray {ray.__version__} and "
            f"Python {platform.python_version()}; install the same on all machines."
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def own_signals() -> Iterator[None]:
    """Keep our handler of SIGTERM: Ray's prints a trace."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    if current_thread() is main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)


def processors() -> int:
    """How many processors the machines of the cluster have now, at least 1."""
    machines: Any = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return max(1, int(machines.get("CPU", 0)))


@dataclass(frozen=True, slots=True)
class Here:
    """What every machine must have: these versions, each with its name; files or folders to `read`; and if something is
    written, the folder `shared` with the file `marker`, to be written to."""

    versions: tuple[tuple[str, str], ...]
    read: tuple[Path, ...]
    marker: str = ""
    shared: Path | None = None

    @classmethod
    def reading(cls, read: Sequence[Path], packages: Sequence[str] = ()) -> "Here":
        """What this machine has, if nothing is written. Versions of `packages` matter, besides the usual ones."""
        return cls(_versions(packages), tuple(read))

    @classmethod
    @contextmanager
    def of(cls, shared: Path, read: Sequence[Path], packages: Sequence[str] = ()) -> "Iterator[Here]":
        """The same with a folder to be written to. The marker is there within the block."""
        marker = shared / f"{SEEN}-{uuid.uuid4().hex}"
        marker.touch()
        try:
            yield replace(cls.reading(read, packages), shared=shared, marker=marker.name)
        finally:
            marker.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise ClusterError if the machine that this runs on lacks something."""
        if self in _checked:
            return
        if lacks := self._lacks():
            raise ClusterError(f"the machine {platform.node()} of the cluster {lacks}.")
        _checked.add(self)

    def _lacks(self) -> str:
        """What this machine lacks, in words; empty if nothing."""
        for name, here in self.versions:
            there = _VERSIONS[name]() if name in _VERSIONS else _version_of(name)
            if there != here:
                return f"has {name} {there} where this one has {here}: install the same on all"
        for path in self.read:
            if not path.exists():
                return f"cannot read {path}: put it on a disk that all share"
        return "" if self.shared is None else self._cannot_write(self.shared)

    def _cannot_write(self, shared: Path) -> str:
        if not (shared / self.marker).exists():
            return f"does not see {shared} as this one does: use a folder on a disk that all share"
        try:
            own = shared / f"{self.marker}-{uuid.uuid4().hex}"
            own.touch()
            own.unlink()
        except OSError as error:
            return f"cannot write to {shared} ({error.strerror}): allow that, or choose another output"
        return ""


_checked: set[Here] = set()
"""What this process has been found to have."""


_VERSIONS: Final = {"ralm": lambda: __version__, "Ray": lambda: ray.__version__, "Python": platform.python_version}


def _versions(packages: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The versions that decide what this machine computes."""
    own = tuple((name, version()) for name, version in _VERSIONS.items())
    return (*own, *((name, _version_of(name)) for name in ("PyStemmer", *packages)))


def _version_of(package: str) -> str:
    """The version of a package; builds of one version for other devices are alike."""
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return "missing"


def _check_answers(address: str) -> None:
    """Raise ClusterError unless something answers there: Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise ClusterError(f"{address!r} is not the address of a cluster: give HOST:PORT, or auto.")
    try:
        socket.create_connection((host, int(port)), _SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"there is no Ray cluster at {address} ({error}). {_START}, or give another address."
        ) from None

"""Connects to a Ray cluster, and checks its machines."""

import logging
import platform
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from threading import current_thread, main_thread
from typing import Final

import ray

from ralm.errors import ClusterError
from ralm.version import __version__

_AUTO: Final = "auto"
_START: Final = "Start one with `ray start --head`, and `ray start --address=...` on its other machines"
_CONNECT_SECONDS: Final = 5.0


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Use the cluster at an address, HOST:PORT or `auto`; ClusterError if there is none, or it has other versions."""
    if ray.is_initialized():
        yield
        return
    if address != _AUTO:
        _check_answers(address)
    try:
        with own_signals():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError:
        if address != _AUTO:
            raise ClusterError(f"{address} is not a Ray cluster, or it needs a token; set RAY_AUTH_TOKEN.") from None
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
    """Keep our handler of SIGTERM, since Ray's prints a trace."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    if current_thread() is main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)


@dataclass(frozen=True, slots=True)
class Requirements:
    """What every machine must have: versions of packages by name, and files or folders to `read`."""

    versions: tuple[tuple[str, str], ...]
    read: tuple[Path, ...]

    @classmethod
    def of(cls, read: Sequence[Path], packages: Sequence[str]) -> "Requirements":
        """Return the requirements of a job; `packages` are those whose versions decide its results."""
        return cls(tuple((name, _version_of(name)) for name in ("ralm", *packages)), tuple(read))

    def check(self) -> None:
        """Raise ClusterError if this machine does not meet them."""
        machine = f"the machine {platform.node()} of the cluster"
        for name, here in self.versions:
            if (there := _version_of(name)) != here:
                raise ClusterError(f"{machine} has {name} {there} where this one has {here}: install the same on all.")
        for path in self.read:
            if not path.exists():
                raise ClusterError(f"{machine} cannot read {path}: put it on a disk that all share.")


def _version_of(name: str) -> str:
    """Return the version of a package here; builds of one version for other devices are alike."""
    return __version__ if name == "ralm" else version(name).partition("+")[0]


def _check_answers(address: str) -> None:
    """Raise ClusterError unless a server answers at the address; Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise ClusterError(f"{address!r} is not the address of a cluster: give HOST:PORT, or auto.")
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"there is no Ray cluster at {address} ({error}). {_START}, or give another address."
        ) from None

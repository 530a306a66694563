"""The process of a command: messages on standard error, signals, dry runs, and the models that it has open."""

import gc
import io
import logging
import re
import signal
import sys
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from threading import current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ralm.errors import RalmWarning
from ralm.lm.api.endpoint import is_api
from ralm.lm.registry import ModelOptions
from ralm.terminal import no_progress, one_line

if TYPE_CHECKING:
    from ralm.distributed.workers import WorkerPool
    from ralm.lm.scoring import Scorer
    from ralm.protocols import WritingModel
    from ralm.reranking.predictive import PairScorer
    from ralm.retrieval.update import RemoteEncoding

_PYTHONS_OWN: Final = warnings.showwarning
_logger: Final = logging.getLogger("ralm")
"""Notes of commands and messages of the library; `ralm --quiet` raises its level."""

_QUOTE: Final = '"'
_ARGUMENT: Final = re.compile(r'`(?:([\w.]+)(?:=("[^"`]*"|[^"`]*))?|"([^"`]*)")`')


def print_note(text: str) -> None:
    """Print one line, unless `ralm --quiet` is given."""
    _logger.info("%s", text)


def print_error(text: str) -> None:
    """Print one line: a warning or an error."""
    sys.stderr.write(f"ralm: {one_line(text)}\n")


@contextmanager
def quietly() -> Iterator[None]:
    """Print no notes and no progress inside the block, only warnings and errors."""
    level = _logger.level
    _logger.setLevel(logging.WARNING)
    try:
        with no_progress():
            yield
    finally:
        _logger.setLevel(level)


@contextmanager
def library_messages(shown: int = logging.INFO) -> Iterator[None]:
    """Print warnings and log records (from a level on) of the library as lines of this program, inside the block."""
    lines, level = _Lines(), _logger.level
    _logger.addHandler(lines)
    _logger.setLevel(shown)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", RalmWarning)
            warnings.showwarning = _show_warning
            yield
    finally:
        _logger.setLevel(level)
        _logger.removeHandler(lines)


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print_error(record.getMessage())


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    if issubclass(category, RalmWarning):
        print_error(f"warning: {message}")
    else:
        _PYTHONS_OWN(message, category, *place, **more)


def escape_unprintable() -> None:
    """Print characters that the encoding of a terminal or pipe lacks as escapes, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def with_flags(text: str, names: Mapping[str, str]) -> str:
    """Return a message with flags in place of the Python arguments in backticks: `stride` becomes --stride."""
    return _ARGUMENT.sub(lambda match: _flag(match, names), text)


def _flag(match: re.Match[str], names: Mapping[str, str]) -> str:
    name, value, alone = match.groups()
    if alone is not None:
        return str(alone)
    if f"{name}={value}" in names:
        return names[f"{name}={value}"]
    if name not in names:
        return match[0]
    return f"{names[name]} {value.strip(_QUOTE)}" if value and value.startswith(_QUOTE) else names[name]


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
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    try:
        with ExitStack() as stack:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                if signal.getsignal(number) is signal.SIG_DFL:
                    stack.callback(signal.signal, number, signal.SIG_DFL)
                    signal.signal(number, end)
            yield
    except BaseException as error:  # Ray makes a KeyboardInterrupt of ours
        if not received or isinstance(error, GeneratorExit):  # that is if a signal arrived just before the block
            raise
    if received:  # also if code that catches everything caught the exception
        sys.exit(128 + received[0])


_opened: "dict[tuple[str, ModelOptions], WritingModel]" = {}
_scorers: "dict[tuple[str, ModelOptions], Scorer]" = {}
_clusters: "dict[tuple[str, str], WorkerPool]" = {}
_connections: Final = ExitStack()
_sharing: ContextVar[bool] = ContextVar("sharing", default=False)


def open_model(name: str, options: ModelOptions) -> "WritingModel":
    """Return the language model of a name, opened once, on a cluster if the options have the address of one."""
    from ralm.lm.registry import load_language_model

    if (name, options) in _opened:
        return _opened[name, options]
    if options.ray is None or is_api(name):
        return closed_at_end(name, options, load_language_model(name, options))
    machines = open_machines(options.ray, options.device)
    from ralm.distributed.models import ClusterModel, ModelLoader

    return closed_at_end(name, options, ClusterModel(machines, ModelLoader.of(name, replace(options, ray=None))))


def closed_at_end(name: str, options: ModelOptions, model: Any) -> Any:
    """Return the model, which is closed when the command ends."""
    _opened[name, options] = model
    gc.freeze()  # it stays to the end: collecting would take longer than to parse the response of a server
    return model


@contextmanager
def sharing_models() -> Iterator[None]:
    """Let commands in the block share models and their scores, until `release_models`."""
    token = _sharing.set(True)
    try:
        yield
    finally:
        _sharing.reset(token)


def open_scorer(name: str, options: ModelOptions) -> "Scorer":
    """Return the language model of a name with a cache of scores, opened once."""
    from ralm.lm.scoring import Scorer

    if (name, options) not in _scorers:
        _scorers[name, options] = Scorer(open_model(name, options))
    return _scorers[name, options]


def open_pairs(name: str, tokens: int | None) -> "PairScorer":
    """Return the cross-encoder of a name, which keeps its scores."""
    from ralm.reranking.predictive import PairScorer, load_cross_encoder

    return PairScorer(load_cross_encoder(name, tokens))


def release_models(needed: Container[str] = ()) -> None:
    """Release models, except those whose name is in `needed`: large ones do not fit into memory together."""
    released = [key for key in _opened if key[0] not in needed]
    if len(released) == len(_opened):
        close_models()
    elif released:
        _close(released)
        gc.unfreeze()
    gc.collect()  # objects of a step, such as an encoder; frozen models are skipped


def open_machines(address: str, device: str) -> "WorkerPool":
    """Return the machines of a cluster, the same for all models of a command."""
    from ralm.distributed import ray_extra

    with ray_extra():
        from ralm.distributed.workers import open_workers
    if (address, device) not in _clusters:
        _clusters[address, device] = _connections.enter_context(open_workers(address, device))
    return _clusters[address, device]


def encoding_on(address: str | None, device: str) -> "RemoteEncoding | None":
    """Return the encoding of passages on the cluster at an address, if given; ClusterError if it is not there."""
    if address is None:
        return None
    from ralm.distributed import ray_extra

    with ray_extra():
        from ralm.distributed.models import EncodeOn
        from ralm.distributed.workers import connected
    with connected(address):
        return EncodeOn(address, device)


def end_command() -> None:
    """Close the models, unless other commands share them."""
    if not _sharing.get():
        close_models()


def close_models() -> None:
    """Close the opened models, leave the cluster, and print the usage of servers."""
    gc.unfreeze()
    _clusters.clear()
    with _connections:
        _close([*_opened][::-1])


def _close(keys: Sequence[tuple[str, ModelOptions]]) -> None:
    """Close the connections of models to servers, and print their usage."""
    for key in keys:
        _scorers.pop(key, None)
        client: Any = getattr(_opened.pop(key), "client", None)
        if client is not None:
            client.close()
            print_note(f"{client.endpoint.model}: {client.usage.describe()}")

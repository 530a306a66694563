"""Opens the language models and machines of a command, and closes them at its end."""

import gc
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ralm.cli.process import print_note
from ralm.lm.api.endpoint import is_api
from ralm.lm.registry import ModelOptions

if TYPE_CHECKING:
    from ralm.distributed.workers import WorkerPool
    from ralm.lm.scoring import Scorer
    from ralm.protocols import WritingModel
    from ralm.reranking.predictive import PairScorer
    from ralm.retrieval.update import RemoteEncoding

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

"""Opens the language models and machines of a command, and closes them at its end."""

import gc
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
    from ralm.retrieval.vectors import RemoteEncoding

_opened: "list[WritingModel]" = []
_clusters: "dict[tuple[str, str], WorkerPool]" = {}
_connections: Final = ExitStack()
_sharing: "list[dict[tuple[str, ModelOptions], Scorer]]" = []


def open_model(name: str, options: ModelOptions) -> "WritingModel":
    """The language model of a name, on a cluster if the options have the address of one.

    Raises the errors of loading it, or of the cluster.
    """
    from ralm.lm.registry import load_language_model

    model: WritingModel
    if options.ray is None or is_api(name):
        model = load_language_model(name, options)
    else:
        machines = open_machines(options.ray, options.device)
        from ralm.distributed.models import ClusterModel, ModelLoader

        model = ClusterModel(machines, ModelLoader.of(name, replace(options, ray=None)))
    _opened.append(model)
    gc.freeze()  # it stays to the end: collecting would take longer than to parse the response of a server
    return model


def open_served(name: str, options: ModelOptions, *, proxy: bool) -> "WritingModel":
    """The language model of a name for a server; raises the errors of loading it."""
    from ralm.lm.registry import open_served_model

    _opened.append(open_served_model(name, options, proxy=proxy))
    gc.freeze()
    return _opened[-1]


@contextmanager
def sharing_models() -> Iterator[None]:
    """Inside the block, commands share models and their scores, until `release_models`."""
    _sharing.append({})
    try:
        yield
    finally:
        _sharing.pop()


def open_scorer(name: str, options: ModelOptions) -> "Scorer":
    """The language model of a name with a cache of scores; raises what `open_model` raises."""
    from ralm.lm.scoring import Scorer

    if not _sharing:
        return Scorer(open_model(name, options))
    shared, key = _sharing[-1], (name, options)
    if key not in shared:
        shared[key] = Scorer(open_model(name, options))
    return shared[key]


def open_pairs(name: str, tokens: int | None) -> "PairScorer":
    """The cross-encoder of a name, which keeps its scores."""
    from ralm.reranking.predictive import PairScorer, load_cross_encoder

    return PairScorer(load_cross_encoder(name, tokens))


def release_models(needed: Container[str] = ()) -> None:
    """Release the opened models, except shared ones with a name in `needed`: large ones do not fit into memory
    together."""
    for shared in _sharing:
        for key in [key for key in shared if key[0] not in needed]:
            del shared[key]
    kept = [scorer.model for shared in _sharing for scorer in shared.values()]
    if not kept:
        close_models()
    elif len(kept) < len(_opened):
        _close([model for model in _opened if model not in kept])
        _opened[:] = kept  # type: ignore[assignment]
        gc.unfreeze()
    gc.collect()  # objects of a step, such as an encoder; frozen models are skipped


def open_machines(address: str, device: str) -> "WorkerPool":
    """The machines of a cluster, the same for all models of a command."""
    from ralm.distributed import ray_extra

    with ray_extra():
        from ralm.distributed.workers import open_workers
    if (address, device) not in _clusters:
        _clusters[address, device] = _connections.enter_context(open_workers(address, device))
    return _clusters[address, device]


def encoding_on(address: str | None, device: str) -> "RemoteEncoding | None":
    """The encoding of passages on the cluster at an address, if given; raises ClusterError if there is no cluster."""
    if address is None:
        return None
    from ralm.distributed import ray_extra

    with ray_extra():
        from ralm.distributed.cluster import connected
        from ralm.distributed.encode import EncodeOn
    with connected(address):
        return EncodeOn(address, device)


def end_command() -> None:
    """Close the models, unless other commands share them."""
    if not _sharing:
        close_models()


def close_models() -> None:
    """Close the opened models, leave the cluster, and print the usage of servers."""
    gc.unfreeze()
    _clusters.clear()
    with _connections:
        _close(_opened[::-1])
        _opened.clear()


def _close(models: "Sequence[WritingModel]") -> None:
    """Close the connections to servers, and print their usage."""
    for model in models:
        client: Any = getattr(model, "client", None)
        if client is not None:
            client.close()
            spent, dry = client.usage, client.options.dry_run
            print_note(f"{client.endpoint.model}: {spent.describe_dry_run() if dry else spent.describe()}")

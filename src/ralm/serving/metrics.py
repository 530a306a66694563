"""Figures for Prometheus; knows numbers, nothing of requests."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


BATCH_FIGURES: Final = {
    "steps": "Steps in which texts were read together.",
    "texts": "Texts in these steps.",
    "seconds": "Seconds of these steps.",
    "passes": "Prompts, or parts of them, that were scored.",
}
"""What is told of `ralm.serving.batching.batcher.Counts`, by name."""
SEARCH_FIGURES: Final = {
    "queries": "Queries that were searched.",
    "seconds": "Seconds that requests waited for them.",
}
"""What is told of `ralm.serving.indexes.Searches`, by name."""


class Metrics:
    """The figures of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "ralm_requests", "Requests by route and HTTP status.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "ralm_request_seconds", "Seconds of a request.", ["route"], buckets=_SECONDS, registry=self.registry
        )
        self.first = Histogram(
            "ralm_first_event_seconds",
            "Seconds until the first event of a stream.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.tokens = Counter(
            "ralm_tokens", "Tokens of prompts, and tokens that were written.", ["kind"], registry=self.registry
        )

    def watch(self, name: str, said: str, count: Callable[[], int]) -> None:
        """A gauge that is read when it is asked for."""
        Gauge(f"ralm_{name}", said, registry=self.registry).set_function(count)

    def watch_each(self, kind: str, figures: Mapping[str, str], counts: object) -> None:
        """A gauge for each of these attributes of `counts`, named after the kind; `figures` says what they are."""
        for name, said in figures.items():
            self.watch(f"{kind}_{name}", said, partial(getattr, counts, name))

    def text(self) -> bytes:
        """All figures in Prometheus's text format."""
        return generate_latest(self.registry)

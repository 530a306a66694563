"""The cluster that all tests on one share: it takes ten seconds to begin."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch

import ralm.distributed.workers  # noqa: F401  # before Ray: it says what Ray shall not print
from tests.distributed.clusters import cluster
from tests.forked import prepare


@pytest.fixture(scope="session")
def nodes() -> Iterator[Any]:
    prepare()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as its machines have: the same arithmetic
    with cluster() as nodes:
        yield nodes
    torch.set_num_threads(threads)


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine belongs to no cluster."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray._private.services.find_bootstrap_address", lambda *_: None)
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", cache(lambda: set()))

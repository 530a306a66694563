"""Fixtures that several parts share."""

import ctypes
import gc
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:  # programs that tests start would use all cores, and spin
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported: no test waits for a hub
if "RALM_TEST_GPU" not in os.environ:  # plain loops of most tests are on the processor; `make gpu` runs those of a GPU
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import certifi
import pytest
from hypothesis import HealthCheck, settings
from torch.utils import collect_env

from ralm.lm.local.model import LocalLanguageModel, load_transformers_model
from tests.campaign import examples, sampled
from tests.tiny_models import FAMILIES, save_tiny_model

gc.set_threshold(20_000)  # as the program itself does
# a busy machine is no fault, and fixtures of a test may stay for all its examples
settings.register_profile(
    "ralm", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("ralm")


def pytest_configure() -> None:
    """Leave out what costs time in every test."""
    # lm-evaluation-harness asks at the end of every evaluation, which starts a dozen programs
    collect_env.get_pretty_env_info = cache(collect_env.get_pretty_env_info)


FIRST = (
    "tests/test_environment.py",
    "tests/lm/test_library_mismatch.py",
    "tests/evaluation/test_perplexity.py",
    "tests/test_against_reference.py",
)
"""What fails if versions or figures are wrong runs first; the rest would only repeat it."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests; those of a module stay together, in their order."""
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(FIRST)))


def pytest_collection_finish() -> None:
    """What is imported and collected stays: the collector need not look through it again after every module."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _memory_of_a_module() -> Iterator[None]:
    """Models are in cycles, and the allocator keeps what is freed: without this a worker grows to 3 GB."""
    yield
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # of the GNU C library
        trim(0)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or writes the user's cache."""
    os.environ["RALM_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def _one_certificate(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every client reads all certificates, although tests speak HTTP: with one, it begins 30 ms earlier."""
    first, end, _ = Path(certifi.where()).read_text(encoding="utf-8").partition("-----END CERTIFICATE-----")
    file = tmp_path_factory.mktemp("certificates") / "one.pem"
    file.write_text(first + end + "\n", encoding="utf-8")
    os.environ["SSL_CERT_FILE"] = str(file)


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with a tiny random model of each family, by family."""
    root = tmp_path_factory.mktemp("models")
    return {family: save_tiny_model(family, root / family) for family in FAMILIES}


@pytest.fixture(scope="module", params=sampled(FAMILIES, "gpt2", "opt", "bloom", "llama"))
def model(request: pytest.FixtureRequest, tiny_folders: dict[str, Path]) -> LocalLanguageModel:
    """A tiny model of each family."""
    return load_transformers_model(str(tiny_folders[request.param]))


@pytest.fixture
def no_tasks_of_the_harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of lm-evaluation-harness, which would read its thousands of tasks for seconds."""
    from lm_eval.tasks import manager

    monkeypatch.setattr(manager, "__file__", str(tmp_path / "none" / "manager.py"))

"""Caches of lm-evaluation-harness: its requests may be cached, its answers may not."""

from pathlib import Path

import pytest
from lm_eval.api.model import CachingLM

from ralm.errors import UsageError
from tests.harness.local_tasks import evaluated, of

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_cache_of_answers_is_refused(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="^`use_cache` finds an answer by its prompt alone"):
        CachingLM(of(tiny_folders["bloom"]), str(tmp_path / "cache.db"))


def test_cached_requests_are_those_of_any_setting(
    tiny_folders: dict[str, Path], index: Path, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness keeps the requests of a task, with its documents: they hold nothing of retrieval."""
    monkeypatch.setattr("lm_eval.caching.cache.PATH", str(tmp_path / "requests"))
    lm = {"lm": str(tiny_folders["bloom"])}
    for arguments in (lm, {**lm, "index": str(index)}):
        expected, *cached = (
            {task: [one["resps"] for one in samples] for task, samples in found["samples"].items()}
            for found in (
                evaluated("ralm", tasks, ("choosing", "writing", "pages"), model_args=arguments, **more)
                for more in ({}, {"cache_requests": True}, {"cache_requests": True})
            )
        )
        assert cached == [expected, expected]
    assert any((tmp_path / "requests").iterdir())

"""The demonstration as a user runs it: the gain that it promises, and the folder that it leaves."""

import json
from pathlib import Path

import pytest

from ralm.demo import demonstration
from ralm.records import Document
from tests.cli.program import ralm

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def gathered_once(documents: list[Document], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demonstration, "standard_library_documentation", lambda: documents)


def test_bm25_passages_help_and_random_ones_do_not(tmp_path: Path) -> None:
    answer = ralm("demo", "--folder", tmp_path / "demo", "--limit-tokens", 300, "--json")
    assert answer.status == 0, answer.err
    shown = json.loads(answer.out)
    assert list(shown) == ["none", "random", "bm25", "recommended"]
    perplexity = {name: measures["token_perplexity"] for name, measures in shown.items()}
    assert perplexity["bm25"] < 0.9 * perplexity["none"]
    assert perplexity["random"] > 0.95 * perplexity["none"]
    assert perplexity["recommended"] < perplexity["bm25"]
    found = ralm("search", tmp_path / "demo" / "index", "open a file for writing", "-k", 3, "--json")
    assert len(json.loads(found.out)["hits"]) == 3


def test_what_a_person_sees(tmp_path: Path) -> None:
    answer = ralm("demo", "--folder", tmp_path / "demo", "--limit-tokens", 100)
    assert answer.status == 0, answer.err
    for said in ("no retrieval", "random passages", "BM25's first", "recommended", "Next:"):
        assert said in answer.out
    assert "ralm-tiny on a tenth of the documentation, which it never saw" in answer.out

"""Indexes as a service, without a language model: its routes as their clients ask them, and the bad requests."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import ref

import httpx
import pytest
import requests

from ralm import open_index, open_retriever
from ralm.retrieval.retriever import RetrieverOptions
from ralm.serving.middleware import AuditLog
from ralm.serving.state import Indexes, SearchService
from tests.serving.served import DOCUMENTS, MODEL, PROMPTS, save_index, served, serving

pytestmark = pytest.mark.filterwarnings("ignore")
QUERIES = ["Which dog keeps sheep?", "", "What sings in the deep sea by night?", "xyzzy"]
WITHOUT_TORCH = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "tokenizers", "huggingface_hub", "openai", "jinja2"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from ralm.__main__ import main

main()
"""


@pytest.fixture(scope="module")
def folders(index: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {"few": index, "two": save_index(tmp_path_factory.mktemp("two") / "index", DOCUMENTS[:2])}


@pytest.fixture(scope="module")
def search_url(folders: dict[str, Path]) -> Iterator[str]:
    """The address of a server without a language model."""
    with serving(SearchService(served(folders=folders))) as url:
        yield url


@pytest.fixture(params=["with a model", "without"])
def any_url(request: pytest.FixtureRequest, url: str, search_url: str) -> str:
    """The addresses of a server with a language model, and of one without."""
    return url if request.param == "with a model" else search_url


def test_requests_keep_few_retrievers_open(folders: dict[str, Path]) -> None:
    indexes = Indexes(folders)
    retrievers = [
        ref(indexes.source("few", RetrieverOptions(retriever=f"random:seed={seed}")).retriever) for seed in range(50)
    ]
    assert len([*filter(None, (retriever() for retriever in retrievers))]) <= 8


def expected(index: Path, query: str, k: int) -> list[tuple[str, float]]:
    """The ids and scores of the passages that the library finds."""
    opened = open_index(index)
    hits = open_retriever(opened).retrieve([query], k).of(0)
    return [(opened.passages[number].document_id, score) for number, score in hits]


def test_search_r1(any_url: str, index: Path) -> None:
    """The request and the reading of `LLMGenerationManager._batch_search` and `_passages2string`."""
    payload: Any = {"queries": QUERIES, "topk": 3, "return_scores": True}
    results = requests.post(f"{any_url}/retrieve", json=payload, timeout=60).json()["result"]
    for query, found in zip(QUERIES, results, strict=True):
        assert [(one["document"]["id"], one["score"]) for one in found] == expected(index, query, 3)
    lines = [one["document"]["contents"].split("\n") for one in results[0]]
    assert lines[0] == ['"The Hill"', "The dog keeps the sheep together on the green hill."]
    plain = requests.post(f"{any_url}/retrieve", json={"queries": QUERIES}, timeout=60).json()["result"]
    assert plain == [[one["document"] for one in found] for found in results]
    nothing = requests.post(f"{any_url}/retrieve", json={"queries": []}, timeout=60).json()
    assert len(nothing.pop("fingerprint")) == 64
    assert nothing == {"result": []}


def test_another_index_is_chosen_in_the_address(search_url: str) -> None:
    body = {"queries": ["dog"], "return_scores": False}
    assert len(httpx.post(f"{search_url}/retrieve", json=body).json()["result"][0]) == 2
    assert len(httpx.post(f"{search_url}/retrieve?index=two", json=body).json()["result"][0]) == 1


def test_filters(any_url: str) -> None:
    body: Any = {"queries": ["dog"], "return_scores": False}
    for where, ids in (("url == 'http://h'", ["hill"]), ("url is None", ["night"]), ("title == 'Nobody'", [])):
        found = httpx.post(f"{any_url}/retrieve", params={"where": where}, json=body).json()["result"][0]
        assert [one["id"] for one in found] == ids
    hits = httpx.get(f"{any_url}/search", params={"q": "dog", "where": "id in ('night', 'sea')"}).json()["hits"]
    assert [one["document_id"] for one in hits] == ["night"]
    for where, said in (("url >", "the filter cannot be read (invalid syntax)"), ("other == 1", "other")):
        answer = httpx.get(f"{any_url}/search", params={"q": "dog", "where": where})
        assert answer.status_code == 400
        assert said in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/retrieve", {"queries": ["a"], "topk": 0}, "`topk` must be from 1 to 100."),
        ("/retrieve", {"queries": ["a"] * 4097}, "`queries` has 4,097 queries; the limit is 4,096: send several"),
        ("/retrieve", {"queries": "a"}, "`queries` must be a valid list."),
        ("/retrieve", {"querys": ["a"]}, "is missing"),
        ("/retrieve", {"queries": ["a"], "topK": 2}, "`topK` is not supported: leave it out."),
        ("/retrieve?index=none", {"queries": ["a"]}, "`index` 'none' is not served; the indexes are: few, two."),
        ("/retrieve", {"queries": ["a" * 300_000]}, "`query` has 300,000 bytes, and the limit is 262,144"),
    ],
)  # fmt: skip
def test_bad_requests(search_url: str, path: str, body: object, said: str) -> None:
    answer = httpx.post(f"{search_url}{path}", json=body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def test_the_passages_of_a_batch_are_in_the_audit_log(index: Path, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    with serving(SearchService(served(folders={"few": index}, audit=AuditLog(log)))) as url:
        httpx.post(f"{url}/retrieve", json={"queries": QUERIES, "topk": 1})
        assert httpx.get(f"{url}/v1/completions").status_code == 404
    assert '"path":"/retrieve"' in log.read_text()
    assert '"document_id":"hill","rank":1' in log.read_text()


def test_without_the_packages_of_models_and_with_numba_compiled_at_the_start(index: Path) -> None:
    arguments = [sys.executable, "-c", WITHOUT_TORCH, "serve", "--port", "0", "--index", f"few={index}"]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            address = process.stderr.readline().split(" at ")[-1].strip()
            assert "llvmlite" in Path(f"/proc/{process.pid}/maps").read_text()
            found = httpx.post(f"{address}/retrieve", json={"queries": QUERIES[:1]}, timeout=60).json()["result"]
            assert found[0][0]["id"] == "hill"
        finally:
            process.terminate()
            assert process.wait(60) == 0


def test_a_search_is_that_of_ralm_search(client: httpx.Client, index: Path) -> None:
    answer = client.get("/search", params={"q": "dog sheep", "k": 2}).json()
    hits = open_index(index).bm25.retrieve(["dog sheep"], 2).of(0)
    assert [(hit["passage"], hit["score"]) for hit in answer["hits"]] == [
        (number, round(score, 4)) for number, score in hits
    ]
    assert answer["hits"][0]["metadata"] == {"url": "http://h"}
    assert answer["index"] == "few"
    assert client.get("/search", params={"q": "nothing of the kind", "index": "few"}).json()["hits"] == []


def test_without_an_index_there_is_nothing_to_search(plain_url: str) -> None:
    assert httpx.get(f"{plain_url}/search?q=a").status_code == 404


def test_a_request_may_choose_the_retriever(dense_url: str) -> None:
    body = {"model": MODEL, "prompt": PROMPTS[0], "max_tokens": 4, "temperature": 0}
    for retriever in ("bm25", "dense", "hybrid", "random"):
        choice = {"retriever": retriever, "reader": "ensemble", "documents": 3}
        answer = httpx.post(f"{dense_url}/v1/completions", json={**body, "ralm": choice}, timeout=60).json()
        assert answer["ralm"]["retriever"] == retriever
        assert len(answer["ralm"]["passages"]) > 0
        found = httpx.get(f"{dense_url}/search", params={"q": "whales", "k": 2, "retriever": retriever}).json()
        assert len(found["hits"]) == (1 if retriever == "bm25" else 2)

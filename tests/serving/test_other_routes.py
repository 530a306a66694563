"""Special tokens of prompts, and searching."""

from pathlib import Path

import httpx
import pytest

from ralm import PlanOptions, open_index
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.registry import load_local_model
from ralm.serving.options import Settings
from tests.serving.served import MODEL, PROMPTS, local, serving
from tests.tiny_models import save_tiny_model

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LocalLanguageModel:
    """A model whose tokenizer begins a text with a BOS."""
    return load_local_model(str(save_tiny_model("llama", tmp_path_factory.mktemp("model") / "llama")))


def test_a_bos_is_read_once_and_never_told(llama: LocalLanguageModel) -> None:
    """Text begins with the BOS that the tokenizer puts first; token ids are read as they are."""
    with serving(local(llama)) as url:
        assert [one["id"] for one in httpx.get(f"{url}/v1/models").json()["data"]] == ["llama"]
        body = {"model": "llama", "max_tokens": 0, "echo": True, "logprobs": 0}
        text = "The sea is"
        ids = llama.tokenizer.encode(text).tolist()

        def scored(prompt: object) -> list[float]:
            answer = httpx.post(f"{url}/v1/completions", json={**body, "prompt": prompt}).json()
            found: list[float] = answer["choices"][0]["logprobs"]["token_logprobs"]
            assert found[0] is None
            return found[1:]

        of_text, with_bos, without = scored(text), scored([256, *ids]), scored(ids)
        assert of_text == pytest.approx(with_bos[1:], abs=1e-4)
        assert without != pytest.approx(of_text, abs=1e-2)


def test_under_retrieval_a_bos_begins_the_reading(llama: LocalLanguageModel, index: Path) -> None:
    settings = Settings(plan=PlanOptions(document_tokens=16, max_length=64))
    service = local(llama, folders={"few": index}, max_length=64, settings=settings)
    with serving(service) as url:
        body = {"model": "llama", "max_tokens": 4, "temperature": 0, "echo": True, "logprobs": 0}
        text = "The sea is deep and"
        ids = llama.tokenizer.encode(text).tolist()
        of_text, of_ids = (
            httpx.post(f"{url}/v1/completions", json={**body, "prompt": prompt}).json()["choices"][0]
            for prompt in (text, [256, *ids])
        )
        assert of_text["text"] == of_ids["text"].removeprefix("<s>")
        one, other = of_text["logprobs"]["token_logprobs"], of_ids["logprobs"]["token_logprobs"]
        assert one[1:] == pytest.approx(other[2:], abs=1e-4)
        assert other[1] < 0  # the first token behind the BOS is scored


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

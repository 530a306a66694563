"""An encoder behind an API gives what the server gives, checked, in batches, and once."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ralm.errors import BudgetError, ServerError, UsageError
from ralm.lm.api.endpoint import ApiOptions
from ralm.records import Passage
from ralm.retrieval.dense.options import EncoderOptions, load_encoder
from ralm.retrieval.index import open_index
from tests.cli.program import done, printed, ralm
from tests.fakes import LetterEncoder

Answer = Callable[[list[str]], Any]


class Server:
    """A server of embeddings; `answer` makes the body of an answer from the texts, which `requests` keeps."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.answer: Answer = lambda texts: {"data": [self.vector(*one) for one in enumerate(texts)][::-1]}

    def vector(self, number: int, text: str) -> dict[str, Any]:
        [vector] = LetterEncoder().encode_queries([text]).tolist()
        return {"object": "embedding", "index": number, "embedding": vector}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            server.requests.append({"path": self.path, **body})
            content = json.dumps(server.answer(body["input"])).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{listening.server_port}#letters"
    listening.shutdown()
    thread.join()
    listening.server_close()


PASSAGES = [Passage(number, str(number), "", f"The whales sing {number} times") for number in range(150)]


def test_vectors_are_those_of_the_server_in_batches(server: Server, url: str, tmp_path: Path) -> None:
    api = ApiOptions(answers=tmp_path / "answers")
    encoder = load_encoder(EncoderOptions(encoder=url), api=api)
    seen: list[int] = []
    found = encoder.encode_passages(PASSAGES, lambda steps=1: seen.append(steps))
    np.testing.assert_allclose(found, LetterEncoder().encode_passages(PASSAGES), rtol=1e-6)
    assert seen == [64, 64, 22]
    assert {one["path"] for one in server.requests} == {"/v1/embeddings"}
    assert encoder.dimension == found.shape[1]
    asked = len(server.requests)
    again = load_encoder(EncoderOptions(encoder=url, normalize=True), api=api)
    lengths = np.linalg.norm(again.encode_passages(PASSAGES), axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=1e-6)
    assert len(server.requests) == asked + 1, "only the sentence that tells the model is asked again"


def test_another_model_under_the_same_name_is_noticed(server: Server, url: str, tmp_path: Path) -> None:
    api = ApiOptions(answers=tmp_path / "answers")
    first = load_encoder(EncoderOptions(encoder=url), api=api).query_fingerprint
    usual = server.answer

    def noisy(texts: list[str]) -> Any:
        answer = usual(texts)
        for one in answer["data"]:
            one["embedding"] = [1.0001 * value for value in one["embedding"]]
        return answer

    server.answer = noisy
    assert load_encoder(EncoderOptions(encoder=url), api=api).query_fingerprint == first
    server.answer = lambda texts: {
        "data": [{"index": number, "embedding": [-9.0, 1.0, 0.0]} for number in range(len(texts))]
    }
    assert load_encoder(EncoderOptions(encoder=url), api=api).query_fingerprint != first


@pytest.mark.parametrize(
    "answer",
    [
        {"data": []},
        {"choices": []},
        {"data": [{"index": 0, "embedding": "AAAA"}]},
        {"data": [{"index": 1, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": [float("nan"), 1.0]}]},
        {"data": [{"index": 0, "embedding": []}]},
    ],
)
def test_other_answers_are_rejected(server: Server, url: str, answer: Any) -> None:
    server.answer = lambda _: answer
    with pytest.raises(ServerError, match="gave no 1 vectors of one length for 1 texts; is letters a model for emb"):
        load_encoder(EncoderOptions(encoder=url)).encode_queries(["whale"])


def test_a_budget_holds_and_vectors_of_another_length_are_rejected(server: Server, url: str) -> None:
    with pytest.raises(BudgetError):
        load_encoder(EncoderOptions(encoder=url), api=ApiOptions(max_requests=2)).encode_passages(PASSAGES)
    encoder = load_encoder(EncoderOptions(encoder=url))
    assert encoder.dimension
    server.answer = lambda texts: {"data": [{"index": number, "embedding": [1.0]} for number in range(len(texts))]}
    with pytest.raises(ServerError, match="of one length"):
        encoder.encode_queries(["whale"])


@pytest.mark.parametrize("option", [{"pooling": "cls"}, {"passage_length": 9}, {"dtype": "float16"}])
def test_options_of_weights_are_rejected(option: dict[str, Any]) -> None:
    [name] = option
    with pytest.raises(UsageError, match=f"`{name}` has no effect with an encoder behind an API"):
        load_encoder(EncoderOptions(encoder="http://127.0.0.1:9#m", **option))


def test_the_commands(server: Server, url: str, tmp_path: Path) -> None:
    """Index, search, sync and encode with the encoder of a server; --json as with one that runs here."""
    corpus, index = tmp_path / "corpus", tmp_path / "index"
    corpus.mkdir()
    (corpus / "a.txt").write_text("The whales sing in the sea.")
    (corpus / "b.txt").write_text("Bread is sold in the town.")
    encoding = ["--retriever", "both", "--encoder", url, "--encoder-args", f"answers={tmp_path}/answers"]
    done("index", corpus, *encoding, "--out", index)
    assert printed("search", index, "whales", "--retriever", "dense")["hits"][0]["document_id"] == "a.txt"
    moved = url.replace("127.0.0.1", "localhost")
    assert printed("search", index, "whales", "--retriever", f"dense:query_encoder={moved}")["hits"]
    other = ralm("search", index, "whales", "--retriever", f"dense:query_encoder={moved}-2")
    assert (other.status, "another encoder" in other.err) == (1, True), other.err
    (corpus / "c.txt").write_text("Whales, whales, whales.")
    done("sync", index)
    assert len(open_index(index).dense().retrieve(["whale"], 9).numbers_QK[0]) == 3
    done("encode", index, "--encoder", url, "--vectors", "other", "--encoder-args", "normalize=true")
    assert "other" in open_index(index).vectors
    refused = ralm("encode", index, "--encoder", "here", "--vectors", "third", "--encoder-args", "max_requests=3")
    assert "--encoder-args max_requests=3 is for encoders behind an API: leave it out for here." in refused.err
    refused = ralm("encode", index, "--encoder", url, "--vectors", "third", "--encoder-args", "device=cpu")
    assert "--encoder-args device=cpu is for encoders that run here" in refused.err

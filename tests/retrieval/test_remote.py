"""A search service in place of an index: the passages of the server's own index, to the bit, and nothing on trust."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ralm
from ralm import open_index, open_retriever
from ralm.errors import ServerError, UsageError
from ralm.lm.api import http
from ralm.reading.sources import FromRetriever
from ralm.retrieval.remote import RemoteRetriever
from ralm.retrieval.retriever import RetrieverOptions
from tests.api.scripted_server import HttpServer, Request
from tests.api.writing import Reply
from tests.cli.program import MODEL_LENGTH, done, printed, ralm as run, write_stories
from tests.runs.test_resume import PLAN, TEXT as LETTERS, Stopped
from tests.serving.process import running

_OURS = {"passage", "passages", "seconds"}
QUERIES = ["Which dog keeps sheep?", "", "whales sing", "xyzzy"] * 40
SEARCH_R1 = {"id": 7, "contents": '"The Sea"\nThe whales sing.\nBy night.', "other": None}
SERVICE = ["ask", "a?", "--retriever", "http://127.0.0.1:9"]
FORMS = ["--reader", "ensemble:documents=2", *MODEL_LENGTH, "-m", "ralm-tiny"]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stories, with one that repeats a passage, their index, and a text."""
    folder = write_stories(tmp_path_factory.mktemp("remote"))
    twice = {"id": "twice", "title": 'A "quoted" title', "text": "the dog and the whale sing aloud here " * 4}
    with (folder / "corpus.jsonl").open("a") as file:
        file.write(json.dumps({**twice, "url": "http://a/b"}) + "\n")
    done("index", folder / "corpus.jsonl", "--out", folder / "index", "--words", 8)
    return folder


@pytest.fixture(scope="module")
def url(work: Path) -> Iterator[str]:
    """The address of `ralm serve` with this index, which wants a key."""
    with running("--index", work / "index", RALM_SERVE_KEY="secret") as served:
        yield served.url


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RALM_RETRIEVER_KEY", "secret")
    monkeypatch.setattr(http, "_seconds_to_retry", lambda outcome, tries: None)


def search_r1(request: Request) -> Reply:
    """What the server of Search-R1 answers: `topk` documents of each query, which it takes from its corpus."""
    return Reply({"result": [[{"document": SEARCH_R1, "score": 12.5}] for _ in request.body["queries"]]})


def found_by(url: str) -> FromRetriever:
    """The passages of the service at a URL."""
    return FromRetriever.of_index(None, RetrieverOptions(retriever=url))


def asked(reply: Callable[[Request], Reply], queries: list[str], k: int = 3) -> FromRetriever:
    """What a scripted service gives to queries."""
    with HttpServer(reply) as server:
        source = found_by(server.root)
        source.search(queries, k)
        return source


def test_hits_and_passages_are_those_of_the_index(work: Path, url: str) -> None:
    index, remote = open_index(work / "index"), RemoteRetriever(f"{url}/retrieve")
    for k in (1, 5, 30):
        expected, hits = open_retriever(index).retrieve(QUERIES, k), remote.retrieve(QUERIES, k)
        for row in range(len(QUERIES)):
            found = [(without_number(remote.passages[number]), score) for number, score in hits.of(row)]
            assert found == [(without_number(index.passages[number]), score) for number, score in expected.of(row)]
    assert len(remote.passages) <= len(index.passages)
    assert [one.number for one in remote.passages] == [*range(len(remote.passages))]


def test_the_commands_give_what_they_give_with_the_index(work: Path, url: str, tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "what sings?", "answers": ["whales"]}\n')
    found = []
    for source in (["--index", work / "index"], ["--retriever", url]):
        out = tmp_path / f"{source[0]}.json"
        done("retrieve", work / "text.txt", "-m", "ralm-tiny", "--max-length", 64, *source, "--out", out)
        evaluated = printed("eval", work / "text.txt", "--limit-tokens", 90, *FORMS, *source)
        answered = printed("qa", questions, "-m", "ralm-tiny", "--new-tokens", 4, *source)
        asked = printed("ask", "what sings?", "-m", "ralm-tiny", "--new-tokens", 4, *source)
        written = printed("generate", "The whales", "-m", "ralm-tiny", "--new-tokens", 4, *source)
        for part in (evaluated, answered):
            assert part["config"].pop("passages")["retriever"] == ("bm25" if "--index" in source else "service")
            part.pop("seconds", None)
        found.append([out.read_text(), *(without_numbers(part) for part in (evaluated, answered, asked, written))])
    assert found[0] == found[1]


def without_number(passage: ralm.Passage) -> tuple[object, ...]:
    return passage.document_id, passage.title, passage.text, passage.metadata


def without_numbers(value: Any) -> Any:
    """JSON without the numbers of passages, which are the service's and ours, and without times."""
    if isinstance(value, list):
        return [without_numbers(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: without_numbers(one) for name, one in value.items() if name not in _OURS}


def test_search_r1() -> None:
    with HttpServer(search_r1) as server:
        retriever = RemoteRetriever(f"{server.root}/retrieve/?corpus=wiki")
        hits = retriever.retrieve(["a"] * 130, 3)
        assert hits.scores_QK.tolist() == [[12.5]] * 130
    assert [(one.document_id, one.title, one.text) for one in retriever.passages] == [
        ("7", "The Sea", "The whales sing.\nBy night.")
    ]
    assert {(one.path, one.key) for one in server.requests} == {("/retrieve?corpus=wiki", "secret")}
    assert sorted(len(one.body["queries"]) for one in server.requests) == [2, 5, 5, 64, 64]
    assert server.requests[0].body.keys() == {"queries", "topk", "return_scores"}


def test_another_index_is_another_run() -> None:
    def reply(request: Request) -> Reply:
        contents = [query.replace("album", text) for query in request.body["queries"]]
        rows = [[{"document": {"id": "a", "contents": content}, "score": score}] for content in contents]
        return Reply({"result": rows, **told})

    first, second = {"fingerprint": "1"}, {"fingerprint": "2"}
    prints: list[Any] = []
    for case in (("", 1, {}), ("", 1, {}), ("b", 1, {}), ("", 2, {}), ("", 1, first), ("", 1, second)):
        text, score, told = case
        prints.append(asked(reply, ["a"]).config["fingerprint"])
    assert (prints[0], prints[0], len({*prints})) == (prints[1], prints[3], 4), "scores may have noise"
    for before, now, queries in (({}, {}, 65), (first, second, 1)):
        with HttpServer(reply) as server, pytest.raises(ServerError, match="has another index now than when"):
            text, told = "", before
            source = found_by(server.root)
            text, told = "b", now
            source.search(["a"] * queries, 3)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (None, "gave no passages with scores: at result, Input should be a valid list"),
        ([], "gave 0 lists of at most 0 passages for 5 queries"),
        ([[], []], "gave 2 lists of at most 0 passages for 5 queries"),
        ([[SEARCH_R1]], "at result.0.0.document, Field required"),
        ([[{"document": SEARCH_R1, "score": float("nan")}]], "at result.0.0.score, Input should be"),
        ([[{"document": SEARCH_R1, "score": 1e300}]], "at result.0.0.score, Input should be"),
        ([[{"document": SEARCH_R1, "score": "1"}]], "at result.0.0.score, Input should be a valid number"),
        ([[{"document": {"contents": "half \ud800"}, "score": 1}]], "half of a character"),
        ([[{"document": {**SEARCH_R1, "metadata": 1}, "score": 1}]], "at result.0.0.document.metadata"),
        ([[{"document": SEARCH_R1, "score": 1}] * 11] * 5, "gave 5 lists of at most 11 passages for 5 queries and"),
        (Reply({"error": "no"}, 401), "rejected the key in the environment variable RALM_RETRIEVER_KEY (401: no)."),
        (Reply("<html>", 200), "answered with '<html>', not with a JSON object"),
        (Reply({"result": [], "fingerprint": float("nan")}), "at fingerprint, Input should be a valid string."),
        (Reply({"result": "x" * 5_000_000}), "its answer has more than 1,376,256 bytes"),
        (Reply({"result": []}, cut_after=5), "cannot be reached or broke off"),
    ],
)  # fmt: skip
def test_failures_are_one_sentence(answer: Any, fault: str) -> None:
    with pytest.raises(ServerError) as raised:
        asked(lambda _: answer if isinstance(answer, Reply) else Reply({"result": answer}), ["a"])
    assert fault in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_equal_passages_of_a_query_stay_apart_and_fewer_are_fine() -> None:
    entries = [{"document": SEARCH_R1, "score": 2}, {"document": SEARCH_R1, "score": 1}]
    source = asked(
        lambda one: Reply({"result": [entries[: one.body["topk"]]] * len(one.body["queries"])}), ["a", "b"], 9
    )
    assert len(source.passages) == 2
    none = asked(lambda request: Reply({"result": [[] for _ in request.body["queries"]]}), ["a"])
    assert len(none.passages) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval", "TEXT", "--index", "INDEX", "--retriever", "URL"], "--index and a search service as --retriever"),
        (["search", "INDEX", "a", "--retriever", "URL"], "and the search service http://127.0.0.1:9 have passages"),
        (["retrieve", "TEXT", "--out", "OUT"], "passages are found in an index: give --index, or the URL"),
        (["ask", "a?", "--retriever", "http://127.0.0.1:9:nprobe=2"], "is not a URL; write http://HOST:PORT."),
        (["ask", "a?", "--retriever", "http://me:key@host"], "put the key into RALM_RETRIEVER_KEY."),
        ([*SERVICE, "--where", "id == 'a'"], "--where has no effect on the search service http://127.0.0.1:9: set it"),
        ([*SERVICE, "--expand", "2"], "--expand has no effect on the search service"),
    ],
)
def test_other_uses_are_rejected(arguments: list[str], message: str, work: Path) -> None:
    values = {"TEXT": work / "text.txt", "INDEX": work / "index", "URL": "http://127.0.0.1:9", "OUT": work / "out"}
    model = [] if arguments[0] == "search" else ["-m", "ralm-tiny"]
    answer = run(*(values.get(one, one) for one in arguments), *model)
    assert answer.status == 2, answer.err
    assert message in answer.err


def test_no_request_makes_a_server_ask_another(url: str) -> None:
    import httpx

    headers = {"Authorization": "Bearer secret"}
    answer = httpx.post(f"{url}/retrieve?retriever=http://127.0.0.1:9", json={"queries": ["a"]}, headers=headers)
    assert (answer.status_code, "only the operator" in answer.text) == (400, True)


def test_a_stopped_run_goes_on_unless_the_index_changed(tmp_path: Path) -> None:
    told = "1"

    def reply(request: Request) -> Reply:
        rows = [[{"document": {"contents": query or "a"}, "score": 1.0}] for query in request.body["queries"]]
        return Reply({"result": rows, "fingerprint": told})

    def start(model: Stopped) -> Any:
        source = found_by(server.root)
        return ralm.run_evaluation(tmp_path / "run", LETTERS, model, PLAN, source=source)

    with HttpServer(reply) as server:
        with pytest.raises(KeyboardInterrupt):
            start(Stopped(passes=5))
        told = "2"
        with pytest.raises(UsageError, match=r"begun with other settings \(passages\.fingerprint"):
            start(Stopped())
        told = "1"
        expected = ralm.evaluate_text(LETTERS, whole := Stopped(), PLAN, source=found_by(server.root))
        assert start(second := Stopped()).reading.measures == expected.reading.measures
        assert 0 < second.read < whole.read

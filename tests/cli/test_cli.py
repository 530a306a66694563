"""The command line end to end: files in; standard output, standard error and exit status out."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ralm.errors import ModelError
from ralm.lm.replica import Pass, Reading, Replica
from ralm.retrieval.index import open_index
from tests.cli.program import Answer, ralm
from tools import command_line_page

MODEL_LENGTH = ["--max-length", "64", "--document-tokens", "24"]
STORIES = [
    ("sea", "The Sea", "The sea is deep and blue. Ships cross the sea by night, and the whales sing in the deep."),
    ("hill", "The Hill", "The hill is green in spring. Sheep graze on the hill, and a dog keeps the sheep together."),
    ("town", "", "A town lies between the sea and the hill. Its market sells fish, wool and bread every morning."),
]
TEXT = "The dog keeps the sheep together on the green hill. The whales sing in the deep blue sea by night. " * 2


def failed(answer: Answer, status: int, message: str) -> None:
    """One clear sentence, nothing on standard output, no traceback."""
    assert answer.status == status, answer.err
    assert message in answer.err
    assert "Traceback" not in answer.err
    assert answer.out == ""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a text, and an index made by the program itself."""
    folder = tmp_path_factory.mktemp("work")
    rows = [{"id": name, "title": title, "text": text} for name, title, text in STORIES]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "text.txt").write_text(TEXT)
    answer = ralm("index", folder / "corpus.jsonl", "--out", folder / "index", "--words", 10)
    assert answer.status == 0, answer.err
    return folder


@pytest.fixture(scope="module")
def model(tiny_folders: dict[str, Path]) -> Path:
    return tiny_folders["llama"]


def test_help_names_every_command() -> None:
    answer = ralm("--help")
    assert answer.status == 0
    assert all(command in answer.out for command in ("index", "search", "eval", "retrieve", "generate", "demo"))


def test_the_page_of_the_documentation_is_the_programs_own_help() -> None:
    written = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert written == command_line_page.page(), "run `make docs`"


def test_help_waits_for_no_heavy_library() -> None:
    heavy = ("torch", "transformers", "numba", "pyarrow")
    script = f"import sys, ralm.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_search(work: Path) -> None:
    answer = ralm("search", work / "index", "sheep on the hill", "-k", "2", "--json")
    assert answer.status == 0
    found = json.loads(answer.out)
    assert found["query"] == "sheep on the hill"
    assert [set(hit) for hit in found["hits"]] == [{"passage", "score", "title", "text"}] * 2
    assert found["hits"][0]["title"] == "The Hill"
    assert found["hits"][0]["score"] >= found["hits"][1]["score"] > 0
    assert "The Hill" in ralm("search", work / "index", "sheep").out


def test_search_answers_a_file_of_queries_in_order(work: Path) -> None:
    (work / "queries.txt").write_text("whales\nno such word zzz\nmarket fish\n")
    answer = ralm("search", work / "index", "--queries", work / "queries.txt")
    rows = [json.loads(line) for line in answer.out.splitlines()]
    assert [row["query"] for row in rows] == ["whales", "no such word zzz", "market fish"]
    assert rows[1]["hits"] == []
    assert "fish" in rows[2]["hits"][0]["text"]


def test_eval_prints_one_object_and_nothing_else(work: Path, model: Path) -> None:
    answer = ralm(
        "eval", work / "text.txt", "--lm", model, "--index", work / "index", *MODEL_LENGTH, "--baseline", "--json"
    )
    assert answer.status == 0, answer.err
    result = json.loads(answer.out)
    measures = ["tokens", "words", "bytes", "nll", "token_perplexity", "word_perplexity", "bits_per_byte", "seconds"]
    assert list(result) == [*measures, "config", "baseline", "gain"]
    assert list(result["baseline"]) == measures
    assert result["tokens"] == len(TEXT) - 1
    assert result["words"] == len(TEXT.split())
    assert result["nll"] != result["baseline"]["nll"]
    assert result["config"]["plan"]["stride"] == 4
    assert result["config"]["passages"]["retriever"] == "bm25"


def test_eval_writes_a_run_that_adds_up(work: Path, model: Path) -> None:
    command = ["eval", work / "text.txt", "--lm", model, "--index", work / "index", *MODEL_LENGTH, "--baseline"]
    answer = ralm(*command, "--windows", "blocked", "--block", "16", "--out", work / "run", "--limit-tokens", "100")
    assert answer.status == 0, answer.err
    rows = pq.read_table(work / "run" / "tokens.parquet").to_pylist()
    summary = json.loads((work / "run" / "summary.json").read_text())
    assert len(rows) == summary["tokens"] == 99
    assert -sum(row["log_prob"] for row in rows) == pytest.approx(summary["nll"], rel=1e-6)
    assert -sum(row["baseline_log_prob"] for row in rows) == pytest.approx(summary["baseline"]["nll"], rel=1e-6)
    passages = open_index(work / "index").passages
    for row in rows:
        if row["passage"] is not None:
            assert row["document_id"] == passages[row["passage"]].document_id
    assert "".join(row["text"] for row in rows) == TEXT[1:100]
    failed(ralm(*command, "--out", work / "run"), 1, "already exists and is kept")
    assert ralm(*command, "--out", work / "run", "--force").status == 0


def test_a_retrieval_file_gives_the_same_as_the_index(work: Path, model: Path) -> None:
    common = ["--lm", model, "--semantics", "official", "--max-length", "64"]
    made = ralm("retrieve", work / "text.txt", "--index", work / "index", *common, "--out", work / "r.json", "-k", "3")
    assert made.status == 0, made.err
    strides = json.loads((work / "r.json").read_text())
    assert set(strides[1]) == {"begin_location", "end_location", "future", "query", "retrieved_docs"}
    assert strides[0]["retrieved_docs"] == []
    assert all("title" not in passage for stride in strides for passage in stride["retrieved_docs"])
    reading = ["eval", work / "text.txt", *common, "--document-tokens", "24", "--json"]
    from_file = json.loads(ralm(*reading, "--retrieved", work / "r.json").out)
    from_index = json.loads(ralm(*reading, "--index", work / "index").out)
    assert from_file["nll"] == from_index["nll"]
    other = ["eval", work / "text.txt", *common, "--document-tokens", "24", "--retrieved", work / "r.json"]
    failed(ralm(*other, "--stride", "2"), 1, "it was made with other settings")


def test_random_passages_are_seeded(work: Path, model: Path) -> None:
    command = ["eval", work / "text.txt", "--lm", model, "--index", work / "index", *MODEL_LENGTH]
    command += ["--retriever", "random", "--limit-tokens", "60", "--json"]
    one, same, other = (json.loads(ralm(*command, "--seed", seed).out)["nll"] for seed in ("1", "1", "2"))
    assert one == same != other


def test_generate_names_its_sources(work: Path, model: Path) -> None:
    command = ["generate", "The sheep on the hill", "--lm", model, "--index", work / "index", "--new-tokens", "12"]
    command += ["--document-tokens", "24", "--temperature", "1", "--seed", "3"]
    answer = ralm(*command, "--json")
    assert answer.status == 0, answer.err
    result = json.loads(answer.out)
    assert result["prompt"] == "The sheep on the hill"
    assert result["spans"]
    assert all(span["title"] in {"The Sea", "The Hill", ""} for span in result["spans"])
    streamed = ralm(*command)
    assert streamed.out.startswith("The sheep on the hill" + result["spans"][0]["text"])
    assert "<-" in streamed.out


def test_generate_reads_a_prompt_from_standard_input(model: Path) -> None:
    answer = ralm(
        "generate", "-", "--lm", model, "--new-tokens", "3", "--json", "--document-tokens", "8", stdin="Hello\n"
    )
    assert json.loads(answer.out)["prompt"] == "Hello"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval"], "Missing argument"),
        (["eval", "TEXT"], "Missing option '--lm'"),
        (["eval", "TEXT", "--lm", "x", "--stride", "0"], "--stride must be at least 1"),
        (["eval", "TEXT", "--lm", "x", "--windows", "jumping"], "--windows"),
        (["eval", "TEXT", "--lm", "x", "--index", "i", "--retrieved", "r"], "give one of them"),
        (["search", "INDEX"], "give either a QUERY or --queries FILE"),
        (["index", "CORPUS", "--out", "o", "--tokens", "5"], "--tokens and --lm go together"),
        (["index", "CORPUS", "--out", "o", "--words", "0"], "--words"),
        (["generate", "", "--lm", "MODEL", "--document-tokens", "8"], "the prompt is empty"),
        (["nonsense"], "No such command"),
    ],
)
def test_bad_usage_has_status_2(work: Path, model: Path, arguments: list[str], message: str) -> None:
    names = {"TEXT": work / "text.txt", "CORPUS": work / "corpus.jsonl", "INDEX": work / "index", "MODEL": model}
    failed(ralm(*(names.get(argument, argument) for argument in arguments)), 2, message)


def test_inputs_that_are_not_what_they_should_be(work: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "broken.jsonl").write_text('{"id": "1", "text": "fine"}\n{"id": "2", "te\n')
    (tmp_path / "r.json").write_text("{}")
    lm = ["--lm", model, *MODEL_LENGTH]
    failed(ralm("eval", tmp_path / "none.txt", *lm), 1, "does not exist")
    failed(ralm("eval", tmp_path / "empty.txt", *lm), 1, "is empty")
    failed(ralm("eval", tmp_path / "latin.txt", *lm), 1, "is not UTF-8")
    failed(ralm("eval", work / "text.txt", "--lm", model), 2, "--max-length 1024 is beyond the 64 tokens")
    failed(ralm("eval", work / "text.txt", *lm, "--index", tmp_path), 1, "is not a ralm index")
    failed(ralm("eval", work / "text.txt", *lm, "--retrieved", tmp_path / "r.json"), 1, "is not a retrieval file")
    failed(ralm("eval", work / "text.txt", "--lm", tmp_path), 1, "is not a model folder")
    failed(ralm("index", tmp_path / "broken.jsonl", "--out", tmp_path / "i"), 1, "line 2")
    failed(ralm("index", tmp_path / "none", "--out", tmp_path / "i"), 1, "does not exist")
    assert not (tmp_path / "i").exists()
    skipped = ralm("index", tmp_path / "broken.jsonl", "--out", tmp_path / "i", "--skip-bad")
    assert skipped.status == 0
    assert "broken lines passed over: 1" in skipped.out


def test_a_damaged_index_is_refused_and_an_existing_one_kept(work: Path, tmp_path: Path) -> None:
    shutil.copytree(work / "index", tmp_path / "index")
    failed(ralm("index", work / "corpus.jsonl", "--out", tmp_path / "index"), 1, "already exists and is kept")
    passages = tmp_path / "index" / "passages.arrow"
    passages.write_bytes(passages.read_bytes()[:-8])
    failed(ralm("search", tmp_path / "index", "sea"), 1, "is damaged: passages.arrow")
    assert ralm("index", work / "corpus.jsonl", "--out", tmp_path / "index", "--force").status == 0
    assert ralm("search", tmp_path / "index", "sea").status == 0


def test_decontamination_is_counted_and_listed(work: Path, tmp_path: Path) -> None:
    """Titles without regard to case and quotes; runs of words wherever they stand."""
    (tmp_path / "titles.txt").write_text('"the sea"\n')
    (tmp_path / "evaluation.txt").write_text("They say its market sells fish, wool and bread every morning, and more.")
    command = ["index", work / "corpus.jsonl", "--out", tmp_path / "i", "--forbidden-titles", tmp_path / "titles.txt"]
    answer = ralm(*command, "--decontaminate", tmp_path / "evaluation.txt", "--ngram", "6", "--words", "10")
    assert answer.status == 0, answer.err
    manifest = json.loads((tmp_path / "i" / "manifest.json").read_text())
    removed = {(row["reason"], row["title"] or row["document_id"]) for row in manifest["settings"]["removed"]["list"]}
    assert {name for _, name in removed} == {"The Sea", "town"}
    assert "whales" not in ralm("search", tmp_path / "i", "whales").out


def test_an_interruption_leaves_nothing_behind(tmp_path: Path) -> None:
    with (tmp_path / "large.jsonl").open("w") as stream:
        for number in range(120_000):
            stream.write(json.dumps({"id": str(number), "title": "t", "text": f"some words {number} " * 40}) + "\n")
    command = [sys.executable, "-m", "ralm", "index", tmp_path / "large.jsonl", "--out", tmp_path / "out" / "index"]
    process = subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # ignored in background jobs
    )
    deadline = time.monotonic() + 60
    while not any((tmp_path / "out").glob(".index.partial-*/passages.arrow")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert "Traceback" not in err
    assert list((tmp_path / "out").iterdir()) == []


def test_reranking_and_its_options(work: Path, model: Path) -> None:
    evaluate = ["eval", work / "text.txt", "--lm", model, *MODEL_LENGTH, "--json"]
    nll = {}
    for method in ("none", "random", "zero-shot", "oracle"):
        answer = ralm(*evaluate, "--index", work / "index", "--rerank", method, "--candidates", 3)
        assert answer.status == 0, answer.err
        shown = json.loads(answer.out)
        nll[method] = shown["nll"]
        assert shown["config"]["reader"]["rerank"]["method"] == method
    assert nll["oracle"] <= min(nll.values())
    other = ralm(*evaluate, "--index", work / "index", "--rerank", "zero-shot", "--candidates", 3, "--rerank-lm", model)
    assert json.loads(other.out)["config"]["reader"]["model"]["name"] == str(model)
    failed(ralm(*evaluate, "--rerank", "oracle"), 2, "--rerank chooses among retrieved passages: give --index")
    failed(ralm(*evaluate, "--index", work / "index", "--rerank-lm", model), 2, "give --rerank zero-shot with it")


def test_a_killed_run_goes_on_and_ends_the_same(
    work: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = ["eval", work / "text.txt", "--lm", model, *MODEL_LENGTH, "--index", work / "index", "--baseline"]
    assert ralm(*evaluate, "--out", tmp_path / "whole").status == 0
    assert not (tmp_path / "whole.unfinished").exists()

    out = [*evaluate, "--out", tmp_path / "run"]
    read = Replica.start
    passes = 0

    def dies(replica: Replica, batch: Sequence[Pass]) -> list[Reading]:
        nonlocal passes
        passes += 1
        if passes == 4:
            raise ModelError("killed")
        return read(replica, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Replica, "start", dies)
        failed(ralm(*out), 1, "killed")
    assert not (tmp_path / "run").exists()
    failed(ralm(*out, "--stride", 8), 2, "begun with other settings (plan.stride 4 there, 8 here): give those again")

    answer = ralm(*out)
    assert answer.status == 0, answer.err
    assert "going on with a run that was stopped" in answer.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "whole"]
    for column in ("log_prob", "baseline_log_prob", "passage"):
        whole, run = (pq.read_table(tmp_path / name / "tokens.parquet")[column] for name in ("whole", "run"))
        assert run.equals(whole)


def test_a_run_that_fails_before_it_scores_leaves_nothing(work: Path, model: Path, tmp_path: Path) -> None:
    evaluate = ["eval", work / "text.txt", "--lm", model, "--index", work / "index", "--out", tmp_path / "run"]
    failed(ralm(*evaluate, "--max-length", 4096), 2, "is beyond")
    assert list(tmp_path.iterdir()) == []


def test_an_ensemble_and_where_its_tokens_came_from(work: Path, model: Path, tmp_path: Path) -> None:
    evaluate = ["eval", work / "text.txt", "--lm", model, *MODEL_LENGTH]
    ensemble = [*evaluate, "--index", work / "index", "--reader", "ensemble", "--documents", 3]
    answer = ralm(*ensemble, "--json", "--out", tmp_path / "run")
    assert answer.status == 0, answer.err
    shown = json.loads(answer.out)
    assert shown["config"]["reader"] == {
        "ensemble": {"documents": 3, "weights": "similarity", "temperature": 1.0},
    }
    table = pq.read_table(tmp_path / "run" / "tokens.parquet").to_pydict()
    assert -sum(table["log_prob"]) == pytest.approx(shown["nll"], rel=1e-5)
    for passage, passages, posteriors in zip(table["passage"], table["passages"], table["posteriors"], strict=True):
        assert len(passages) == len(posteriors) <= 3
        if passages:
            assert sum(posteriors) == pytest.approx(1, abs=1e-5)
            assert passage == passages[posteriors.index(max(posteriors))]
    failed(ralm(*evaluate, "--reader", "ensemble"), 2, "--reader ensemble reads all of --index or --retrieved")
    failed(ralm(*ensemble, "--rerank", "oracle"), 2, "and no --rerank")

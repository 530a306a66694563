"""The command line end to end: files in; standard output, standard error and exit status out."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyarrow.csv import read_csv

from ralm.errors import ModelError
from ralm.lm.local.engine import ReadLogits, Replica
from ralm.records import ScoringSequence
from ralm.retrieval.index import open_index
from ralm.terminal import visible
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


def test_another_language(tmp_path: Path) -> None:
    """An inflected form of a word of the query is found, however the index is searched."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "fluss.txt").write_text("Viele H\u00e4user stehen am Fluss.", "utf-8")
    (corpus / "hund.txt").write_text("Der Hund schl\u00e4ft auf der Wiese.", "utf-8")
    index = tmp_path / "index"
    assert ralm("index", corpus, "--out", index, "--analyser", "german").status == 0
    found = ralm("search", index, "Ein Haus?", "--json")
    assert [json.loads(line)["hits"][0]["text"][:5] for line in found.out.splitlines()] == ["Viele"]


def test_an_unknown_language(tmp_path: Path) -> None:
    answer = ralm("index", tmp_path, "--out", tmp_path / "index", "--analyser", "klingon")
    failed(answer, 2, "ralm: --analyser must be one of english, standard, cjk, arabic")
    assert len(answer.err.splitlines()) == 1


def test_help_names_every_command() -> None:
    answer = ralm("--help")
    assert answer.status == 0
    assert all(
        command in answer.out for command in ("index", "search", "eval", "sweep", "retrieve", "generate", "demo")
    )


@pytest.mark.locked  # versions of typer write usages in different ways
def test_the_page_of_the_documentation_is_the_programs_own_help() -> None:
    written = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert written == command_line_page.page(), "run `make docs`"


def test_help_waits_for_no_heavy_library() -> None:
    heavy = ("torch", "transformers", "numba", "pyarrow")
    script = f"import sys, ralm.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("retriever", ["bm25", "random"])
def test_forbidden_passages_are_not_found(work: Path, tmp_path: Path, retriever: str) -> None:
    titles, documents = tmp_path / "titles.txt", tmp_path / "documents.txt"
    titles.write_text("the hill\n")
    documents.write_text("town\n")
    options = ["--forbidden-titles", titles, "--forbidden-documents", documents, "--retriever", retriever]
    answer = ralm("search", work / "index", "sheep on the sea", *options, "--json")
    assert answer.status == 0
    assert {hit["title"] for hit in json.loads(answer.out)["hits"]} == {"The Sea"}
    assert "4 of 6 passages are forbidden" in answer.err


def test_forbidden_documents_that_are_no_file(work: Path, tmp_path: Path) -> None:
    failed(ralm("search", work / "index", "sea", "--forbidden-documents", tmp_path / "none"), 1, "does not exist")
    (tmp_path / "empty.txt").write_text("\n")
    failed(
        ralm("search", work / "index", "sea", "--forbidden-documents", tmp_path / "empty.txt"),
        1,
        "holds no document ids",
    )


def test_indexing_and_searching_do_not_wait_for_torch(work: Path, tmp_path: Path) -> None:
    for arguments in (
        ["index", str(work / "corpus.jsonl"), "--out", str(tmp_path / "index")],
        ["search", str(work / "index"), "sheep"],
    ):
        script = f"""
import sys
from ralm.cli import main
sys.argv = ["ralm", *{arguments}]
try:
    main()
finally:
    assert "torch" not in sys.modules
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_search(work: Path) -> None:
    answer = ralm("search", work / "index", "sheep on the hill", "-k", "2", "--json")
    assert answer.status == 0
    found = json.loads(answer.out)
    assert found["query"] == "sheep on the hill"
    assert [set(hit) for hit in found["hits"]] == [{"passage", "score", "document_id", "title", "text", "metadata"}] * 2
    assert found["hits"][0]["title"] == "The Hill"
    assert found["hits"][0]["score"] >= found["hits"][1]["score"] > 0
    assert found["hits"][0]["document_id"] == "hill"
    assert "The Hill" in ralm("search", work / "index", "sheep").out
    nothing = ralm("search", work / "index", "zzz")
    assert (nothing.status, nothing.out) == (0, "")
    assert "no passage was found" in nothing.err


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
    measures = ["tokens", "words", "bytes", "nll", "unknown_tokens", "token_perplexity", "word_perplexity"]
    measures += ["bits_per_byte", "seconds"]
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
    assert streamed.out.startswith(visible("The sheep on the hill" + result["spans"][0]["text"]))
    assert "<-" in streamed.out


def test_generate_reads_a_prompt_from_standard_input(model: Path) -> None:
    answer = ralm(
        "generate", "-", "--lm", model, "--new-tokens", "3", "--json", "--document-tokens", "8", stdin="Hello\n"
    )
    assert json.loads(answer.out)["prompt"] == "Hello"


def test_generate_from_an_ensemble(work: Path, model: Path) -> None:
    command = ["generate", "The sheep on the hill", "--lm", model, "--index", work / "index", "--new-tokens", "9"]
    command += ["--document-tokens", "24", "--reader", "ensemble", "--documents", "3", "--weights-temperature", "2"]
    command += ["--temperature", "1", "--top-k", "50", "--top-p", "0.9"]
    answer = ralm(*command, "--json")
    assert answer.status == 0, answer.err
    result = json.loads(answer.out)
    assert list(result) == ["prompt", "spans", "tokens"]
    assert 0 < len(result["tokens"]) <= 9
    for token in result["tokens"]:
        assert list(token) == ["token", "text", "log_prob", "passages", "posteriors", "certified"]
        assert token["log_prob"] <= 0
        assert 1 <= len(token["passages"]) == len(token["posteriors"]) <= 3
        assert sum(token["posteriors"]) == pytest.approx(1, abs=1e-5)
    assert max(len(token["passages"]) for token in result["tokens"]) > 1
    shown = ralm(*command)
    assert shown.out.startswith(visible("The sheep on the hill" + result["spans"][0]["text"]))
    assert re.search(r"<- .*\(passage \d+\) \d+%, ", shown.out)
    one = [word if word != "3" else "1" for word in command[:-6]]
    in_context = [word for word in one if word not in ("--reader", "ensemble", "--documents", "1")][:-2]
    assert json.loads(ralm(*one, "--json").out) == json.loads(ralm(*in_context, "--json").out)


def test_generate_with_what_a_reranker_chose_and_with_joined_passages(work: Path, model: Path) -> None:
    command = ["generate", "The sheep on the hill", "--lm", model, "--index", work / "index", "--new-tokens", "6"]
    command += ["--document-tokens", "16", "--json"]
    plain = json.loads(ralm(*command).out)
    for options in (["--rerank", "random", "--candidates", "3", "--seed", "5"], ["--rerank", "zero-shot"]):
        answer = ralm(*command, *options)
        assert answer.status == 0, answer.err
        assert all(len(token["passages"]) == 1 for token in json.loads(answer.out)["tokens"])
    joined = ralm(*command, "--reader", "concatenation", "--documents", "2")
    assert json.loads(joined.out)["tokens"][0]["log_prob"] != plain["tokens"][0]["log_prob"]
    assert json.loads(joined.out)["tokens"][0]["passages"] == plain["tokens"][0]["passages"], "credited to the first"
    failed(ralm(*command, "--rerank", "oracle"), 2, "the reranker Oracle looks at the text to be predicted")
    failed(ralm("generate", "a", "--lm", model, "--rerank", "random"), 2, "--rerank chooses among passages of an index")


def test_generate_after_many_prompts(work: Path, model: Path, tmp_path: Path) -> None:
    """Each gets what it gets alone, in the order of the file."""
    prompts = ["The sheep on the hill", "Ships", "A town lies between the sea and the hill"]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts) + "\n")
    command = ["generate", "--lm", model, "--index", work / "index", "--new-tokens", "9", "--document-tokens", "24"]
    command += ["--reader", "ensemble", "--documents", "2", "--stop", "e"]
    together = ralm(*command, "--prompts", tmp_path / "prompts.txt", "--json")
    assert together.status == 0, together.err
    found = [json.loads(line) for line in together.out.splitlines()]
    assert [row["prompt"] for row in found] == prompts
    for row in found:
        alone = json.loads(ralm(*command, row["prompt"], "--json").out)
        assert alone["spans"] == row["spans"]
        assert [token["token"] for token in alone["tokens"]] == [token["token"] for token in row["tokens"]]
    shown = ralm(*command, "--prompts", tmp_path / "prompts.txt").out
    assert [shown.index(prompt) for prompt in prompts] == sorted(shown.index(prompt) for prompt in prompts)
    failed(ralm(*command, "one", "--prompts", tmp_path / "prompts.txt"), 2, "give either a PROMPT or --prompts FILE")
    failed(ralm(*command), 2, "give either a PROMPT or --prompts FILE")
    failed(ralm(*command, "--prompts", tmp_path / "none.txt"), 1, "does not exist")
    (tmp_path / "gap.txt").write_text("one\n\ntwo\n")
    failed(ralm(*command, "--prompts", tmp_path / "gap.txt"), 2, "prompt 2 of 3 is empty")


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
        (["generate", "a", "--lm", "MODEL", "--reader", "ensemble"], "--reader ensemble reads several passages"),
        (["generate", "a", "--lm", "MODEL", "--top-k", "0"], "--top-k must be at least 1"),
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
    assert re.search(
        "left out: broken lines, objects or pages: 1, such as .*, line 2 is not JSON: .* at column 16\n", skipped.out
    )


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


def test_reranking_and_its_options(work: Path, model: Path) -> None:
    evaluate = ["eval", work / "text.txt", "--lm", model, *MODEL_LENGTH, "--json"]
    nll, few = {}, ["--candidates", 3]
    for method in ("none", "random", "zero-shot", "oracle"):
        answer = ralm(*evaluate, "--index", work / "index", "--rerank", method, *(few if method != "none" else []))
        assert answer.status == 0, answer.err
        shown = json.loads(answer.out)
        nll[method] = shown["nll"]
        reranker = shown["config"]["reranker"]
        assert (reranker["reranker"] if reranker else "none") == method
    assert nll["oracle"] <= min(nll.values())
    other = ralm(*evaluate, "--index", work / "index", "--rerank", "zero-shot", "--candidates", 3, "--rerank-lm", model)
    assert json.loads(other.out)["config"]["reranker"]["model"]["name"] == str(model)
    failed(ralm(*evaluate, "--rerank", "oracle"), 2, "--rerank chooses among retrieved passages: give --index")
    failed(
        ralm(*evaluate, "--index", work / "index", "--rerank-lm", model),
        2,
        "--rerank-lm has no effect",
    )


def test_a_killed_run_goes_on_and_ends_the_same(
    work: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = ["eval", work / "text.txt", "--lm", model, *MODEL_LENGTH, "--index", work / "index", "--baseline"]
    assert ralm(*evaluate, "--out", tmp_path / "whole").status == 0
    assert not (tmp_path / "whole.unfinished").exists()

    out = [*evaluate, "--out", tmp_path / "run"]
    start = Replica.start
    passes = 0

    def dies(replica: Replica, batch: Sequence[ScoringSequence], read: ReadLogits) -> object:
        nonlocal passes
        passes += 1
        if passes == 4:
            raise ModelError("killed")
        return start(replica, batch, read)

    with monkeypatch.context() as patch:
        patch.setattr(Replica, "start", dies)
        failed(ralm(*out), 1, "killed")
    assert not (tmp_path / "run").exists()
    failed(ralm(*out, "--stride", 8), 2, "begun with other settings (plan.stride 4 there, 8 here): give those again")

    answer = ralm(*out)
    assert answer.status == 0, answer.err
    assert "resuming a run that was stopped" in answer.err
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
    options = {"documents": 3, "weights": "similarity", "temperature": 1.0}
    assert shown["config"]["reader"] == {"reader": "ensemble", **options}
    table = pq.read_table(tmp_path / "run" / "tokens.parquet").to_pydict()
    assert -sum(table["log_prob"]) == pytest.approx(shown["nll"], rel=1e-5)
    for passage, passages, posteriors in zip(table["passage"], table["passages"], table["posteriors"], strict=True):
        assert len(passages) == len(posteriors) <= 3
        if passages:
            assert sum(posteriors) == pytest.approx(1, abs=1e-5)
            assert passage == passages[posteriors.index(max(posteriors))]
    failed(ralm(*evaluate, "--reader", "ensemble"), 2, "--reader ensemble reads passages: give --index or --retrieved")


def test_an_ensemble_reads_the_passages_that_a_reranker_chose(work: Path, model: Path) -> None:
    evaluate = ["eval", work / "text.txt", "--lm", model, *MODEL_LENGTH, "--index", work / "index", "--json"]
    ensemble = [*evaluate, "--reader", "ensemble", "--documents", 2]
    one = [*evaluate, "--rerank", "oracle", "--candidates", 3]
    both = json.loads(ralm(*ensemble, "--rerank", "oracle", "--candidates", 3).out)
    assert both["config"]["reranker"] == {"reranker": "oracle", "candidates": 3}
    assert both["config"]["reader"]["reader"] == "ensemble"
    assert both["nll"] not in (json.loads(ralm(*ensemble).out)["nll"], json.loads(ralm(*one).out)["nll"])
    alone = json.loads(ralm(*evaluate, "--reader", "ensemble", "--documents", 1, *one[-4:]).out)
    assert alone["nll"] == json.loads(ralm(*one).out)["nll"], "an ensemble of the best alone"
    failed(ralm(*ensemble, "--rerank", "oracle", "--candidates", 1), 2, "--candidates 1 are fewer than the 2 passages")


def test_concatenation_and_rolling_windows(work: Path, model: Path, tmp_path: Path) -> None:
    evaluate = ["eval", work / "text.txt", "--lm", model, "--index", work / "index", "--json"]
    joined = [*evaluate, "--max-length", 64, "--document-tokens", 24, "--reader", "concatenation"]
    answer = ralm(*joined)
    assert answer.status == 0, answer.err
    assert json.loads(answer.out)["config"]["reader"] == {
        "reader": "concatenation",
        "documents": 2,
        "cut_together": False,
    }
    assert ralm(*joined, "--documents", 3, "--cut-together").status == 0, "together they are 24 tokens"
    failed(ralm(*evaluate, "--cut-together"), 2, "--cut-together has no effect without --reader concatenation")
    alone = json.loads(ralm(*joined, "--documents", 1).out)["nll"]
    assert alone == json.loads(ralm(*evaluate, "--max-length", 64, "--document-tokens", 24).out)["nll"]
    failed(ralm(*joined, "--documents", 3), 2, "--documents 3 of --document-tokens 24 and --stride 4 do not fit")
    rolling = ["--windows", "rolling", "--semantics", "official", "--stride", 29, "--query-tokens", 11]
    rolling += ["--max-length", 64]
    read = [*evaluate, *rolling, "--document-tokens", 24, "--reader", "ensemble", "--documents", 2]
    shown = json.loads(ralm(*read).out)
    assert shown["tokens"] == 1 + len(TEXT), "the first token is scored too, and the BOS, after an end-of-text token"
    retrieve = ["retrieve", work / "text.txt", "--lm", model, "--index", work / "index", *rolling, "-k", 2]
    assert ralm(*retrieve, "--out", tmp_path / "r.json").status == 0
    from_file = ["eval", work / "text.txt", "--lm", model, "--retrieved", tmp_path / "r.json", "--json", *read[6:]]
    assert json.loads(ralm(*from_file).out)["nll"] == pytest.approx(shown["nll"], rel=1e-6)


@pytest.mark.parametrize(
    "windows",
    [
        ["--windows", "blocked", "--block", 8],
        ["--windows", "blocked", "--block", 8, "--semantics", "official"],
        ["--windows", "rolling", "--semantics", "official", "--stride", 29, "--query-tokens", 11],
    ],
)
def test_a_retrieval_file_for_other_windows(work: Path, model: Path, tmp_path: Path, windows: list[object]) -> None:
    common = [work / "text.txt", "--lm", model, *windows, "--max-length", 64]
    made = ralm("retrieve", *common, "--index", work / "index", "--out", tmp_path / "r.json")
    assert made.status == 0, made.err
    reading = ["eval", *common, "--document-tokens", 24, "--json"]
    from_file, from_index = (
        json.loads(ralm(*reading, *source).out)
        for source in (["--retrieved", tmp_path / "r.json"], ["--index", work / "index"])
    )
    assert from_file["nll"] == from_index["nll"]


def test_retrieval_has_no_documents_that_must_fit(work: Path, model: Path, tmp_path: Path) -> None:
    common = ["retrieve", work / "text.txt", "--lm", model, "--index", work / "index", "--max-length", 64]
    assert ralm(*common, "--windows", "blocked", "--out", tmp_path / "blocks.json").status == 0
    rolling = ["--windows", "rolling", "--semantics", "official", "--stride", 53, "--query-tokens", 11]
    assert ralm(*common, *rolling, "--out", tmp_path / "rolling.json").status == 0
    failed(ralm(*common, "--windows", "blocked", "--block", 6, "--out", tmp_path / "no"), 2, "multiple of --stride 4")


def test_the_special_tokens_that_stand_first(work: Path, model: Path) -> None:
    evaluate = ["eval", work / "text.txt", "--lm", model, "--max-length", 64, "--document-tokens", 24, "--json"]
    shown = {bos: json.loads(ralm(*evaluate, "--bos", bos).out) for bos in ("auto", "always", "never")}
    assert [shown[bos]["config"]["plan"]["bos"] for bos in shown] == ["auto", "always", "never"]
    assert shown["auto"]["nll"] == shown["always"]["nll"] != shown["never"]["nll"], "LLaMA's tokenizer adds a BOS"
    failed(ralm(*evaluate, "--bos", "never", "--semantics", "official"), 2, "is not what the published code does")
    failed(ralm(*evaluate, "--document-tokens", "0"), 2, "--document-tokens must be at least 1, not 0")
    common = ["generate", "The", "--lm", model, "--new-tokens", 3, "--document-tokens", 24, "--json"]
    written = [json.loads(ralm(*common, "--bos", bos).out)["tokens"] for bos in ("auto", "never")]
    assert written[0] != written[1]
    failed(ralm(*common, "--max-length", 65), 2, "--max-length 65 is beyond the 64 tokens that")


def test_a_sweep_is_what_eval_gives_for_every_value(work: Path, model: Path, tmp_path: Path) -> None:
    arguments = [work / "text.txt", "--lm", model, *MODEL_LENGTH, "--index", work / "index", "--reader", "ensemble"]
    arguments += ["--limit-tokens", 80]
    command = ["sweep", "--over", "documents", "--values", "1,3,2", *arguments]
    answer = ralm(*command, "--no-plot", "--json", "--out", tmp_path / "sweep")
    assert answer.status == 0, answer.err
    shown = json.loads(answer.out)
    assert json.loads((tmp_path / "sweep" / "summary.json").read_text()) == shown
    assert shown["scored"] < shown["requests"]
    assert shown["retrievals"] == 1
    rows = read_csv(tmp_path / "sweep" / "sweep.csv").to_pylist()
    assert [row["documents"] for row in rows] == [1, 3, 2]
    for row, point in zip(rows, shown["points"], strict=True):
        alone = json.loads(ralm("eval", *arguments, "--documents", row["documents"], "--baseline", "--json").out)
        assert point["config"] == alone["config"]
        assert row["nll"] == pytest.approx(alone["nll"], rel=1e-6)
        assert row["none_token_perplexity"] == pytest.approx(alone["baseline"]["token_perplexity"], rel=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sweep"]
    failed(ralm(*command, "--out", tmp_path / "sweep", "--no-plot"), 1, "already exists and is kept")


def test_with_a_limit_what_follows_in_the_text_is_not_read(work: Path, model: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole.txt", tmp_path / "broken.txt"
    whole.write_text(TEXT * 3)
    broken.write_bytes((TEXT * 20_000).encode() + b"\xff")
    options = ["--lm", model, *MODEL_LENGTH, "--limit-tokens", 60]
    for command in (["eval", "--baseline"], ["sweep", "--over", "stride", "--values", "4,8"]):
        answers = [ralm(*command, text, *options, "--index", work / "index", "--json") for text in (whole, broken)]
        assert answers[1].status == 0, answers[1].err
        of_whole, of_broken = (json.loads(answer.out) for answer in answers)
        for shown in (of_whole, of_broken):
            shown.pop("seconds", None), shown.get("baseline", {}).pop("seconds", None)
            for config in [shown["config"]] if "config" in shown else [point["config"] for point in shown["points"]]:
                config.pop("text")
        assert of_whole == of_broken
    for text in (whole, broken):
        retrieved = ["--index", work / "index", "--out", tmp_path / f"{text.stem}.json"]
        assert ralm("retrieve", text, "--lm", model, "--max-length", 64, "--limit-tokens", 60, *retrieved).status == 0
    assert (tmp_path / "whole.json").read_bytes() == (tmp_path / "broken.json").read_bytes()
    failed(ralm("eval", broken, "--lm", model, *MODEL_LENGTH), 1, "is not UTF-8: byte")
    failed(ralm("eval", tmp_path / "none.txt", *options), 1, "none.txt does not exist")


def test_a_sweep_over_retrievers_has_a_table(work: Path, model: Path) -> None:
    arguments = [work / "text.txt", "--lm", model, *MODEL_LENGTH, "--index", work / "index", "--limit-tokens", 60]
    answer = ralm("sweep", "--over", "retriever", "--values", "bm25,random", *arguments)
    assert answer.status == 0, answer.err
    for said in ("--retriever", "bm25", "random", "none", "gain", "requests scored, 2 retrievals"):
        assert said in answer.out


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, "--documents makes no difference"),
        ({"--values": "2,2"}, "--values has a value twice: 2,2."),
        ({"--values": "2,"}, "--values of --documents must be whole numbers"),
        (
            {"--over": "rerank", "--values": "none,best"},
            "--rerank must be one of none, zero-shot, predictive, oracle, random, not 'best'",
        ),
        ({"--over": "lm"}, "--over must be one of index, retrieved, retriever"),
        ({"--index": None}, "a sweep reads with passages: give --index or --retrieved"),
        ({"--nonsense": "1"}, "No such option"),
    ],
)
def test_sweeps_that_make_no_sense(work: Path, changed: dict[str, str | None], message: str) -> None:
    usual = {"--over": "documents", "--values": "1,2", "--lm": "ralm-tiny", "--index": str(work / "index")}
    given = [part for pair in (usual | changed).items() if pair[1] is not None for part in pair]
    failed(ralm("sweep", work / "text.txt", *given), 2, message)


class WithoutMatplotlib:
    """An import finder that stands for an installation without the package."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name=name)


def test_a_plot_without_matplotlib_is_refused_before_anything_is_scored(
    work: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib" or name == "ralm.runs.plot"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [WithoutMatplotlib, *sys.meta_path])
    command = ["sweep", work / "text.txt", "--lm", model, *MODEL_LENGTH, "--index", work / "index"]
    command += ["--over", "stride", "--values", "4,8", "--out", tmp_path / "sweep"]
    failed(ralm(*command), 1, "needs the package matplotlib: pip install 'ralm[plots]', or give --no-plot")
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_draws_its_plot(work: Path, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = ["sweep", work / "text.txt", "--lm", model, *MODEL_LENGTH, "--index", work / "index"]
    answer = ralm(*command, "--over", "stride", "--values", "4,8", "--limit-tokens", 40, "--out", tmp_path / "sweep")
    assert answer.status == 0, answer.err
    assert (tmp_path / "sweep" / "sweep.png").stat().st_size > 1000

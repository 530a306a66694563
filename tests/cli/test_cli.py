"""The command line end to end: files in; standard output, standard error and exit status out."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyarrow.csv import read_csv

from ralm.errors import ModelError
from ralm.retrieval.index import open_index
from ralm.terminal import visible
from tests.cli.program import MODEL_LENGTH, TEXT, done, failed, printed, ralm
from tools import command_line_page

PROMPT = "The sheep on the hill"


@pytest.mark.locked  # versions of typer write usages in different ways
def test_the_page_of_the_documentation_is_the_programs_own_help() -> None:
    written = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert written == command_line_page.page(), "run `make docs`"


def test_help_waits_for_no_heavy_library() -> None:
    heavy = ("torch", "transformers", "numba", "pyarrow")
    script = f"import sys, ralm.cli; print([name for name in {heavy} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_commands_load_no_library_in_vain(work: Path, evaluate: list[object], tmp_path: Path) -> None:
    done(*evaluate, "--limit-tokens", 20, "--baseline", "--out", tmp_path / "run")
    for arguments, heavy in (
        (["index", work / "corpus.jsonl", "--out", tmp_path / "index"], {"torch"}),
        (["search", work / "index", "sheep"], {"torch"}),
        (["report", tmp_path / "run"], {"torch", "numba"}),
    ):
        script = f"""
import sys
from ralm.cli import main
sys.argv = ["ralm", *{[*map(str, arguments)]}]
try:
    main()
finally:
    assert not {heavy} & {{*sys.modules}}
"""
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr


def test_search(work: Path) -> None:
    found = printed("search", work / "index", PROMPT, "-k", "2")
    assert found["query"] == PROMPT
    fields = {"passage", "score", "document_id", "title", "text", "metadata", "marks"}
    assert [set(hit) for hit in found["hits"]] == [fields] * 2
    [mark] = printed("search", work / "index", "sings")["hits"][0]["marks"]
    assert printed("search", work / "index", "sings")["hits"][0]["text"][slice(*mark)] == "sing"
    assert (found["hits"][0]["title"], found["hits"][0]["document_id"]) == ("The Hill", "hill")
    assert found["hits"][0]["score"] >= found["hits"][1]["score"] > 0
    assert re.match(r"  1\. +\d\.\d{3}  hill, \S+:2  The Hill\n     ", done("search", work / "index", "sheep").out)
    nothing = done("search", work / "index", "zzz")
    assert nothing.out == ""
    assert "no passage was found" in nothing.err


def test_search_answers_a_file_of_queries_in_order(work: Path, tmp_path: Path) -> None:
    (tmp_path / "queries.txt").write_text("whales\nno such word zzz\nmarket fish\n")
    answer = done("search", work / "index", "--queries", tmp_path / "queries.txt")
    rows = [json.loads(line) for line in answer.out.splitlines()]
    assert [row["query"] for row in rows] == ["whales", "no such word zzz", "market fish"]
    assert rows[1]["hits"] == []
    assert "fish" in rows[2]["hits"][0]["text"]


def test_eval_prints_one_object_and_nothing_else(evaluate: list[object]) -> None:
    result = printed(*evaluate, "--baseline")
    measures = ["tokens", "words", "bytes", "nll", "unknown_tokens", "token_perplexity", "word_perplexity"]
    measures += ["bits_per_byte", "seconds"]
    assert list(result) == [*measures, "read", "baseline", "gain", "change", "change_interval", "config"]
    assert list(result["baseline"]) == measures
    assert (result["tokens"], result["words"]) == (len(TEXT) - 1, len(TEXT.split()))
    assert result["nll"] != result["baseline"]["nll"]
    assert (result["config"]["plan"]["stride"], result["config"]["passages"]["retriever"]) == (4, "bm25")


def test_eval_writes_a_run_that_adds_up(work: Path, evaluate: list[object], tmp_path: Path) -> None:
    run = [*evaluate, "--baseline", "--out", tmp_path / "run"]
    done(*run, "--windows", "blocked", "--block", "16", "--limit-tokens", "100")
    rows = pq.read_table(tmp_path / "run" / "tokens.parquet").to_pylist()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert len(rows) == summary["tokens"] == 99
    assert -sum(row["log_prob"] for row in rows) == pytest.approx(summary["nll"], rel=1e-6)
    assert -sum(row["baseline_log_prob"] for row in rows) == pytest.approx(summary["baseline"]["nll"], rel=1e-6)
    passages = open_index(work / "index").passages
    for row in rows:
        assert row["passage"] is None or row["document_id"] == passages[row["passage"]].document_id
    assert "".join(row["text"] for row in rows) == TEXT[1:100]
    failed(ralm(*run), 1, "already exists and is kept")
    done(*run, "--force")


@pytest.mark.parametrize(
    "windows",
    [
        ["--semantics", "official"],
        ["--windows", "blocked", "--block", 8],
        ["--windows", "rolling", "--semantics", "official", "--stride", 29, "--query-tokens", 11],
    ],
)
def test_a_retrieval_file_gives_the_same_as_the_index(
    work: Path, model: Path, tmp_path: Path, windows: list[object]
) -> None:
    common, file = [work / "text.txt", "--lm", model, *windows, "--max-length", 64], tmp_path / "r.json"
    done("retrieve", *common, "--index", work / "index", "--out", file)
    strides = json.loads(file.read_text())
    assert set(strides[1]) == {"begin_location", "end_location", "future", "query", "retrieved_docs"}
    assert all("title" not in passage for stride in strides for passage in stride["retrieved_docs"])
    reading = ["eval", *common, "--document-tokens", 24]
    from_file = printed(*reading, "--retrieved", file)
    assert from_file["nll"] == printed(*reading, "--index", work / "index")["nll"]
    failed(ralm(*reading, "--retrieved", file, "--stride", 2), 1, "it was made with other settings")


def test_retrieval_has_no_documents_that_must_fit(work: Path, model: Path, tmp_path: Path) -> None:
    common = ["retrieve", work / "text.txt", "--lm", model, "--index", work / "index", "--max-length", 64]
    done(*common, "--windows", "blocked", "--out", tmp_path / "blocks.json")
    rolling = ["--windows", "rolling", "--semantics", "official", "--stride", 53, "--query-tokens", 11]
    done(*common, *rolling, "--out", tmp_path / "rolling.json")
    failed(ralm(*common, "--windows", "blocked", "--block", 6, "--out", tmp_path / "no"), 2, "multiple of --stride 4")


def test_an_answer_whose_passages_have_no_shares(work: Path, model: Path) -> None:
    parts = ["--lm", model, "--index", work / "index", "--reader", "ensemble", "--documents", 2, "--mixer", "contrast"]
    answered = done("ask", PROMPT, *parts).out
    assert "\n  1. retrieved  " in answered
    assert "%  " not in answered


def test_generate_names_its_sources(generate: list[object]) -> None:
    command = [*generate, PROMPT, "--temperature", "1", "--seed", "3"]
    result = printed(*command)
    assert result["prompt"] == PROMPT
    assert all(span["title"] in {"The Sea", "The Hill", ""} for span in result["spans"])
    streamed = done(*command).out
    assert streamed.startswith(visible(PROMPT + result["spans"][0]["text"]))
    assert "<-" in streamed


def test_generate_says_that_a_prompt_is_too_long(generate: list[object]) -> None:
    answer = done(*generate, "sheep " * 20, "--max-length", 64)
    assert "warning: the prompt has 120 tokens, and 64 are read at once: its oldest tokens are left out" in answer.err


def test_generate_from_an_ensemble(generate: list[object]) -> None:
    drawn = ["--temperature", "1", "--top-k", "50", "--top-p", "0.9"]
    command = [*generate, PROMPT, "--reader", "ensemble:temperature=2", "--documents"]
    result = printed(*command, 3, *drawn)
    assert list(result) == ["prompt", "spans", "tokens"]
    assert 0 < len(result["tokens"]) <= 9
    for token in result["tokens"]:
        assert list(token) == ["token", "text", "log_prob", "passages", "posteriors", "certified"]
        assert token["log_prob"] <= 0
        assert 1 <= len(token["passages"]) == len(token["posteriors"]) <= 3
        assert sum(token["posteriors"]) == pytest.approx(1, abs=1e-5)
    assert max(len(token["passages"]) for token in result["tokens"]) > 1
    shown = done(*command, 3, *drawn).out
    assert shown.startswith(visible(PROMPT + result["spans"][0]["text"]))
    assert re.search(r"<- .*\(passage \d+\) \d+%, ", shown)
    assert printed(*command, 1) == printed(*generate, PROMPT)


def test_generate_after_many_prompts(generate: list[object], tmp_path: Path) -> None:
    """Each gets what it gets alone, in the order of the file."""
    prompts, file = [PROMPT, "Ships", "A town lies between the sea and the hill"], tmp_path / "prompts.txt"
    file.write_text("\n".join(prompts) + "\n")
    command = [*generate, "--reader", "ensemble", "--documents", "2", "--stop", "e"]
    found = [json.loads(line) for line in done(*command, "--prompts", file, "--json").out.splitlines()]
    assert [row["prompt"] for row in found] == prompts
    for row in found:
        alone = printed(*command, row["prompt"])
        assert alone["spans"] == row["spans"]
        assert [token["token"] for token in alone["tokens"]] == [token["token"] for token in row["tokens"]]
    shown = done(*command, "--prompts", file).out
    assert [shown.index(prompt) for prompt in prompts] == sorted(shown.index(prompt) for prompt in prompts)
    failed(ralm(*command, "one", "--prompts", file), 2, "give either a PROMPT or --prompts FILE")
    failed(ralm(*command), 2, "give either a PROMPT or --prompts FILE")
    failed(ralm(*command, "--prompts", tmp_path / "none.txt"), 1, "does not exist")
    file.write_text("one\n\ntwo\n")
    failed(ralm(*command, "--prompts", file), 2, "prompt 2 of 3 is empty")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("eval", "Missing argument"),
        ("eval TEXT", "Missing option '--lm'"),
        ("eval TEXT --lm x --stride 0", "--stride must be at least 1"),
        ("eval TEXT --lm x --windows jumping", "--windows"),
        ("eval TEXT --lm x --index i --retrieved r", "give one of them"),
        ("eval TEXT --lm MODEL", "--max-length 1024 is beyond the 64 tokens"),
        ("search INDEX", "give either a QUERY or --queries FILE"),
        ("index CORPUS --out o --tokens 5", "--tokens and --lm go together"),
        ("index CORPUS --out o --words 0", "--words"),
        ("generate a --lm MODEL --reader ensemble", "--rerank read passages: give --index"),
        ("generate a --lm MODEL --top-k 0", "--top-k must be at least 1"),
        ("generate a --lm MODEL --baseline", "give --index too"),
        ("generate --prompts TEXT --lm MODEL --index INDEX --report x", "--report shows one text"),
        ("nonsense", "No such command"),
    ],
)
def test_bad_usage_has_status_2(work: Path, model: Path, arguments: str, message: str) -> None:
    names = {"TEXT": work / "text.txt", "CORPUS": work / "corpus.jsonl", "INDEX": work / "index", "MODEL": model}
    failed(ralm(*(names.get(word, word) for word in arguments.split())), 2, message)


def test_inputs_that_are_not_what_they_should_be(work: Path, model: Path, tmp_path: Path) -> None:
    for name, content in (("empty.txt", b""), ("gap.txt", b"\n"), ("latin.txt", b"caf\xe9"), ("r.json", b"{}")):
        (tmp_path / name).write_bytes(content)
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"id": "1", "text": "fine"}\n{"id": "2", "te\n')
    lm, text, out = ["--lm", model, *MODEL_LENGTH], work / "text.txt", ["--out", tmp_path / "i"]
    forbidden = ["search", work / "index", "sea", "--forbidden-titles"]
    for command, message in (
        (["eval", tmp_path / "none.txt", *lm], "does not exist"),
        (["eval", tmp_path / "empty.txt", *lm], "is empty"),
        (["eval", tmp_path / "latin.txt", *lm], "is not UTF-8"),
        (["eval", text, *lm, "--index", tmp_path], "is not a ralm index"),
        (["eval", text, *lm, "--retrieved", tmp_path / "r.json"], "is not a retrieval file"),
        (["eval", text, "--lm", tmp_path], "is not a model folder"),
        (["index", broken, *out], "line 2"),
        (["index", tmp_path / "none", *out], "does not exist"),
        ([*forbidden, tmp_path / "none"], "does not exist"),
        ([*forbidden, tmp_path / "gap.txt"], "holds no titles"),
    ):
        failed(ralm(*command), 1, message)
    assert not (tmp_path / "i").exists()
    skipped = done("index", broken, *out, "--skip-bad").out
    expected = "left out: broken lines, objects or pages: 1, such as .*, line 2 is not JSON: .* at column 16\n"
    assert re.search(expected, skipped)


def test_decontamination_is_counted_and_listed(work: Path, tmp_path: Path) -> None:
    """Titles without regard to case and quotes; runs of words wherever they stand."""
    (tmp_path / "titles.txt").write_text('"the sea"\n')
    (tmp_path / "evaluation.txt").write_text("They say its market sells fish, wool and bread every morning, and more.")
    command = ["index", work / "corpus.jsonl", "--out", tmp_path / "i", "--forbidden-titles", tmp_path / "titles.txt"]
    done(*command, "--decontaminate", tmp_path / "evaluation.txt", "--ngram", "6", "--words", "10")
    manifest = json.loads((tmp_path / "i" / "manifest.json").read_text())
    removed = {(row["reason"], row["title"] or row["document_id"]) for row in manifest["settings"]["removed"]["list"]}
    assert {name for _, name in removed} == {"The Sea", "town"}
    assert "whales" not in done("search", tmp_path / "i", "whales").out


def test_reranking_and_its_options(work: Path, model: Path, evaluate: list[object]) -> None:
    found = printed(*evaluate, "--rerank", f"zero-shot:candidates=3,lm={model}")["config"]["reranker"]
    assert (found["reranker"], found["model"]["name"]) == ("zero-shot", str(model))
    without = ["eval", work / "text.txt", "--lm", model, *MODEL_LENGTH]
    failed(ralm(*without, "--rerank", "oracle"), 2, "--rerank read passages: give --index")
    failed(
        ralm(*evaluate, "--rerank", f"lexical:lm={model}"), 2, "--rerank lexical has no key 'lm': its keys are candid"
    )


def test_a_run_that_was_stopped_says_that_it_is_resumed(
    evaluate: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object, **__: object) -> None:
        raise ModelError("killed")

    out = [*evaluate, "--limit-tokens", 40, "--out", tmp_path / "run"]
    with monkeypatch.context() as patch:
        patch.setattr("ralm.runs.run.write_run", dies)
        failed(ralm(*out), 1, "killed")
    failed(ralm(*out, "--stride", 8), 2, "begun with other settings (plan.stride 4 there, 8 here): give those again")
    assert "resuming a run that was stopped" in done(*out).err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_special_tokens_of_readings_with_passages_alone_are_noted(evaluate: list[object]) -> None:
    failed(ralm(*evaluate, "--bos", "never", "--semantics", "official"), 2, "is not what the published code does")
    failed(ralm(*evaluate, "--document-tokens", "0"), 2, "--document-tokens must be at least 1, not 0")
    mixed = "read with passages alone, so the gain is theirs too"
    notes = [done(*evaluate, "--baseline", "--semantics", semantics).err for semantics in ("official", "paper")]
    assert [mixed in note for note in notes] == [True, False]


def test_a_sweep_is_what_eval_gives_for_every_value(evaluate: list[object], tmp_path: Path) -> None:
    arguments = [*evaluate[1:], "--reader", "ensemble", "--limit-tokens", 80]
    command = ["eval", "--over", "documents=1,3,2", *arguments, "--out", tmp_path / "sweep"]
    shown = printed(*command)
    assert json.loads((tmp_path / "sweep" / "summary.json").read_text()) == shown
    rows = read_csv(tmp_path / "sweep" / "sweep.csv").to_pylist()
    assert [row["documents"] for row in rows] == [1, 3, 2]
    for row, point in zip(rows, shown["points"], strict=True):
        alone = printed("eval", *arguments, "--documents", row["documents"], "--baseline")
        assert point["config"] == alone["config"]
        assert point["nll"] == pytest.approx(alone["nll"], rel=1e-6)
        assert row["token_perplexity"] == pytest.approx(alone["token_perplexity"], rel=1e-6)
        assert row["none_token_perplexity"] == pytest.approx(alone["baseline"]["token_perplexity"], rel=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sweep"]
    failed(ralm(*command), 1, "already exists and is kept")


def test_a_sweep_over_retrievers_has_a_table(evaluate: list[object]) -> None:
    answer = done(*evaluate, "--over", "retriever=bm25,random", "--limit-tokens", 60)
    for said in ("--retriever", "bm25", "random", "none token", "token perplexity", "random"):
        assert said in answer.out


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"--over": "mixer=uniform,posterior"}, "--mixer has no effect without --reader ensemble"),
        ({"--over": "stride=2,2"}, "--stride has a value twice: 2,2."),
        ({"--over": "documents=2,"}, "--documents must be a whole number, not"),
        (
            {"--over": "rerank=none,best"},
            "--rerank best is not known: write one of none, lexical, zero-shot, predictive, oracle, random, or a class",
        ),
        ({"--over": "lm=a"}, "--over must be KEY=v1,v2,... with a KEY of index, retriever"),
        (
            {"--over": "stride=2,4", "--index": None},
            "--over compares readings with passages: give --index or --retrieved",
        ),
        ({"--nonsense": "1"}, "No such option"),
    ],
)
def test_sweeps_that_make_no_sense(work: Path, changed: dict[str, str | None], message: str) -> None:
    usual = {"--over": "documents=1,2", "--lm": "ralm-tiny", "--index": str(work / "index")}
    given = [part for pair in (usual | changed).items() if pair[1] is not None for part in pair]
    failed(ralm("eval", work / "text.txt", *given), 2, message)


def test_a_sweep_draws_its_plot(evaluate: list[object], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done(*evaluate, "--over", "stride=4,8", "--limit-tokens", 40, "--out", tmp_path / "sweep")
    assert (tmp_path / "sweep" / "sweep.png").stat().st_size > 1000

"""Options that would do nothing beside the others are refused by every command, with what makes them work."""

from pathlib import Path

import pytest

from tests.cli.program import failed, ralm

INDEXED, DRAWN = ["--index", "i"], ["--retriever", "random"]
HYBRID = ["--retriever", "hybrid"]


@pytest.mark.parametrize(
    ("command", "arguments", "option", "needs"),
    [
        ("eval", ["--documents", 10], "--documents", "--reader ensemble or --reader concatenation"),
        ("eval", [*INDEXED, "--documents", 10], "--documents", "--reader ensemble or --reader concatenation"),
        ("eval", [*INDEXED, "--weights", "uniform"], "--weights", "--reader ensemble"),
        ("eval", [*INDEXED, "--reader", "concatenation", "--weights", "uniform"], "--weights", "--reader ensemble"),
        (
            "eval",
            [*INDEXED, "--reader", "ensemble", "--weights", "uniform", "--weights-temperature", 2],
            "--weights-temperature",
            "--weights similarity",
        ),
        ("eval", [*INDEXED, "--candidates", 4], "--candidates", "--rerank"),
        ("eval", [*INDEXED, "--rerank", "oracle", "--rerank-tokens", 4], "--rerank-tokens", "--rerank zero-shot"),
        ("eval", [*INDEXED, "--rerank", "oracle", "--rerank-lm", "x"], "--rerank-lm", "--rerank zero-shot"),
        ("eval", [*INDEXED, "--fusion", "rrf"], "--fusion", "--retriever hybrid"),
        ("eval", [*INDEXED, *HYBRID, "--dense-weight", 0.2], "--dense-weight", "--fusion interpolation"),
        ("eval", [*INDEXED, "--ef-search", 9], "--ef-search", "--retriever dense or hybrid"),
        ("eval", [*INDEXED, "--block", 8], "--block", "--windows blocked"),
        ("eval", [*INDEXED, "--seed", 0], "--seed", "--retriever random or --rerank random"),
        ("eval", ["--retriever", "bm25"], "--retriever", "--index"),
        ("eval", ["--retrieved", "r", "--cache", "c"], "--cache", "--index"),
        ("eval", ["--retrieved", "r", "--query-tokens", 9], "--query-tokens", "--index"),
        ("eval", ["--baseline"], "--baseline", "--index or --retrieved"),
        ("eval", ["--force"], "--force", "--out"),
        ("sweep", ["--over", "stride", "--values", "2,4", *INDEXED, "--no-plot"], "--no-plot", "--out"),
        ("sweep", ["--over", "stride", "--values", "2,4", *INDEXED, "--documents", 2], "--documents", "--reader ens"),
        ("generate", ["--retriever", "dense"], "--retriever", "--index"),
        ("generate", ["--stride", 2], "--stride", "--index"),
        ("generate", [*INDEXED, "--documents", 2], "--documents", "--reader ensemble"),
        ("generate", ["--top-k", 5], "--top-k", "a --temperature above 0"),
        ("generate", [*INDEXED, "--seed", 5], "--seed", "--retriever random or --rerank random or a --temp"),
        ("generate", ["--force"], "--force", "--report"),
    ],
)
def test_options_of_reading(tmp_path: Path, command: str, arguments: list[object], option: str, needs: str) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three")
    answer = ralm(command, text, "--lm", "ralm-tiny", *arguments)
    failed(answer, 2, f"ralm: {option} has no effect without {needs}")
    assert len(answer.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "option", "needs"),
    [
        (["--pooling", "cls"], "--pooling", "--retriever dense or both"),
        (["--no-titles"], "--no-titles", "--retriever dense or both"),
        (["--passage-length", 9], "--passage-length", "--retriever dense or both"),
        (["--faiss", "Flat"], "--faiss", "--retriever dense or both"),
        (["--training-sample", 9], "--training-sample", "--retriever dense or both"),
        (["--device", "cpu"], "--device", "--retriever dense or both"),
        (
            ["--retriever", "dense", "--encoder", "e", "--training-sample", 9],
            "--training-sample",
            "a --faiss",
        ),
        (["--retriever", "dense", "--encoder", "e", "--k1", 1], "--k1", "--retriever bm25 or both"),
        (
            ["--retriever", "dense", "--encoder", "e", "--analyser", "standard"],
            "--analyser",
            "--retriever bm25 or both",
        ),
        (["--retriever", "dense", "--encoder", "e", "--workers", 1], "--workers", "--retriever bm25 or both"),
        (["--tokens", 9, "--lm", "ralm-tiny", "--words", 9], "--words", "passages of words"),
        (["--ngram", 9], "--ngram", "--decontaminate"),
        (["--max-overlap", 0.1], "--max-overlap", "--decontaminate"),
    ],
)
def test_options_of_indexing(tmp_path: Path, arguments: list[object], option: str, needs: str) -> None:
    answer = ralm("index", tmp_path, "--out", tmp_path / "out", *arguments)
    failed(answer, 2, f"ralm: {option} has no effect without {needs}")
    assert list(tmp_path.iterdir()) == []


def test_options_of_searching_and_reporting(tmp_path: Path) -> None:
    failed(ralm("search", tmp_path, "sea", "--seed", 1), 2, "--seed has no effect without --retriever random")
    failed(ralm("search", tmp_path, "sea", "--query-encoder", "e"), 2, "--query-encoder has no effect")
    retrieve = ["retrieve", tmp_path / "t", "--lm", "x", "--index", tmp_path, "--out", tmp_path / "r"]
    failed(ralm(*retrieve, "--seed", 1), 2, "--seed has no effect")
    failed(ralm(*retrieve, "--nprobe", 1), 2, "--nprobe has no effect")
    failed(ralm("report", tmp_path, "--force"), 2, "--force has no effect without --html")
    failed(ralm("report", tmp_path, "--html", tmp_path / "p", "--json"), 2, "--json has no effect")


def test_a_sweep_may_give_what_only_some_of_its_values_use(tmp_path: Path) -> None:
    """It gets as far as opening the index."""
    text = tmp_path / "text.txt"
    text.write_text("one two three")
    command = ["sweep", text, "--lm", "ralm-tiny", "--index", tmp_path / "none", "--over"]
    for swept in (
        ["reader", "--values", "in-context,ensemble", "--documents", 4, "--weights", "uniform"],
        ["rerank", "--values", "none,zero-shot", "--candidates", 4, "--rerank-lm", "ralm-tiny"],
        ["retriever", "--values", "bm25,hybrid", "--dense-weight", 0.3, "--fusion", "interpolation", "--nprobe", 4],
        ["windows", "--values", "sliding,blocked", "--block", 64],
    ):
        failed(ralm(*command, *swept), 1, "does not exist")

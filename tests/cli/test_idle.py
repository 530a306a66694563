"""Options that would do nothing beside the others are refused by every command, with what makes them work."""

from pathlib import Path

import pytest

from tests.cli.program import failed, ralm

READING = "eval TEXT --lm ralm-tiny "
INDEXED = READING + "--index i "
GENERATE = "generate a --lm ralm-tiny "
INDEX = "index DIR --out DIR/out "
DENSE = INDEX + "--retriever dense --encoder e "
EITHER = "--retriever dense or both"


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        (INDEXED + "--mixer uniform", "--reader ensemble"),
        (INDEXED + "--reader concatenation --mixer uniform", "--reader ensemble"),
        (INDEXED + "--block 8", "--windows blocked"),
        (READING + "--retriever bm25", "--index"),
        (READING + "--retrieved r --query-tokens 9", "--index"),
        (READING + "--baseline", "--index or --retrieved"),
        (READING + "--force", "--out"),
        (GENERATE + "--retriever dense", "--index"),
        (GENERATE + "--stride 2", "--index"),
        (GENERATE + "--top-k 5", "a --temperature above 0"),
        (GENERATE + "--index i --seed 5", "a --temperature above 0"),
        (GENERATE + "--force", "--report"),
        (INDEX + "--encoder-args pooling=cls", EITHER),
        (INDEX + "--faiss Flat", EITHER),
        (DENSE + "--k1 1", "--retriever bm25 or both"),
        (DENSE + "--analyser standard", "--retriever bm25 or both"),
        (DENSE + "--memory 9", "--retriever bm25 or both"),
        (INDEX + "--tokens 9 --lm ralm-tiny --words 9", "passages of words"),
        (INDEX + "--ngram 9", "--decontaminate"),
        (INDEX + "--max-overlap 0.1", "--decontaminate"),
        ("recipe analysis/contamination --stand-in", "--out"),
        ("report DIR --force", "--html"),
        ("report DIR --html DIR/p --json", ""),
    ],
)
def test_the_last_option_has_no_effect(tmp_path: Path, command: str, needs: str) -> None:
    (tmp_path / "text.txt").write_text("one two three")
    words = command.replace("TEXT", f"{tmp_path}/text.txt").replace("DIR", str(tmp_path)).split()
    answer = ralm(*words)
    failed(answer, 2, f"ralm: {[word for word in words if word.startswith('--')][-1]} has no effect without {needs}")
    assert len(answer.err.splitlines()) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["text.txt"]


@pytest.mark.parametrize(
    "swept",
    [
        "reader=in-context,ensemble:documents=4 --mixer uniform",
        "mixer.eta=1,2 --reader ensemble --mixer posterior",
        "windows=sliding,blocked --block 64",
    ],
)
def test_a_sweep_may_give_what_only_some_of_its_values_use(tmp_path: Path, swept: str) -> None:
    """It gets as far as opening the index."""
    text = tmp_path / "text.txt"
    text.write_text("one two three")
    command = ["eval", text, "--lm", "ralm-tiny", "--index", tmp_path / "none", "--over", *swept.split()]
    failed(ralm(*command), 1, "does not exist")

"""Comparing runs: figures against plain sums, documents against the text, and runs that cannot be compared."""

from pathlib import Path

import numpy as np
import pytest

from ralm.errors import DamagedFolderError, FolderError, UsageError
from ralm.evaluation.intervals import STRETCH, Units, compare
from ralm.runs.compare import compare_runs
from ralm.runs.run import read_tokens
from tests.cli.program import MODEL_LENGTH, done, failed, printed, ralm

DOCUMENTS = [
    f"= Doc {number} =\n" + f"the dog and the cat number {number} keep the sheep on the hill. " * 4
    for number in range(12)
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_folders: dict[str, Path]) -> Path:
    """Runs of two models over one text, `one` and `two`, and one over a shorter text."""
    folder = tmp_path_factory.mktemp("comparison")
    (folder / "text.txt").write_text("\n\n".join(DOCUMENTS))
    names = ["one", "two", "short"]
    limits = [[], ["--windows", "blocked", "--block", 16], ["--limit-tokens", 40]]
    for name, options in zip(names, limits, strict=True):
        out = ["--lm", tiny_folders["llama"], *MODEL_LENGTH, *options, "--out", folder / name]
        done("eval", folder / "text.txt", *out)
    return folder


def test_figures_are_those_of_the_targets(runs: Path) -> None:
    one, two = read_tokens(runs / "one"), read_tokens(runs / "two")
    compared = compare_runs([runs / "one", runs / "two"], documents="^= .* =$")
    first, second = compared.runs
    assert (compared.targets, compared.units, compared.noun) == (len(one.texts), len(DOCUMENTS), "documents")
    assert first.token_perplexity.value == pytest.approx(np.exp(-one.log_probs_T.mean(dtype=np.float64)))
    assert first.change is None
    assert second.change is not None
    assert second.change.value == pytest.approx(
        np.exp(one.log_probs_T.mean(dtype=np.float64) - two.log_probs_T.mean(dtype=np.float64)) - 1
    )

    text = one.before + "".join(one.texts)
    assert text == "\n\n".join(DOCUMENTS)
    begins = [text.index(f"= Doc {number} =") for number in range(len(DOCUMENTS))]
    end, counts = len(one.before), np.zeros(len(DOCUMENTS), dtype=np.int64)
    first_U, second_U = np.zeros(len(DOCUMENTS)), np.zeros(len(DOCUMENTS))
    for piece, a, b in zip(one.texts, one.log_probs_T.tolist(), two.log_probs_T.tolist(), strict=True):
        end += len(piece)
        document = sum(begin < end for begin in begins) - 1
        first_U[document] -= a
        second_U[document] -= b
        counts[document] += 1
    expected = compare(Units(second_U, counts), Units(first_U, counts), "perplexity")
    assert second.change.ends == pytest.approx(expected.ends)


def test_a_run_equals_itself(runs: Path) -> None:
    same = compare_runs([runs / "one", runs / "one"], documents="^= .* =$").runs[1].change
    assert same is not None
    assert (same.value, same.ends) == (0, None)


def test_stretches_without_documents(runs: Path) -> None:
    compared = compare_runs([runs / "one", runs / "two"])
    assert (compared.units, compared.noun) == (-(-compared.targets // STRETCH), "stretches")


def test_other_targets_are_refused(runs: Path) -> None:
    with pytest.raises(UsageError, match="different targets"):
        compare_runs([runs / "one", runs / "short"])


@pytest.mark.parametrize(("pattern", "message"), [("(", "not a regular expression"), ("nowhere", "0 of its lines")])
def test_documents_that_cannot_be_found(runs: Path, pattern: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compare_runs([runs / "one"], documents=pattern)


def test_what_is_no_run(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(FolderError):
        compare_runs([runs / "text.txt"])
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in (runs / "one").iterdir():
        content = file.read_bytes()
        (damaged / file.name).write_bytes(content[:-9] if file.name == "tokens.parquet" else content)
    with pytest.raises(DamagedFolderError):
        compare_runs([damaged])


def test_the_command(runs: Path, tmp_path: Path) -> None:
    two = ["report", runs / "one", runs / "two", "--documents", "^= .* =$"]
    shown = done(*two).out
    assert all(words in shown for words in ("change from the first", "12 documents: 95% intervals")), shown
    assert printed(*two)["documents"] == 12
    for flag, value in (("--html", tmp_path / "page.html"), ("--tokens", 3), ("--questions", 3)):
        failed(ralm(*two, flag, value), 2, f"{flag} has no effect without a single run")
    failed(ralm("report", runs / "one", "--latex"), 2, "--latex has no effect without several runs")

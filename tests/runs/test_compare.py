"""Comparing runs: figures against plain sums, documents against the text, and runs that cannot be compared."""

from pathlib import Path

import numpy as np
import pytest

from ralm.errors import DamagedFolderError, FolderError, UsageError
from ralm.evaluation.bootstrap import TARGETS_PER_DOCUMENT, bootstrap_means, interval
from ralm.runs.compare import compare_runs
from ralm.runs.run import read_tokens
from tests.cli.program import MODEL_LENGTH, done, failed, printed, ralm

DOCUMENTS = [
    f"= Doc {number} =\n" + f"the dog and the cat number {number} keep the sheep on the hill. " * 4
    for number in range(5)
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_folders: dict[str, Path]) -> Path:
    """Runs of two models over one text, `one` and `two`, and one over a shorter text."""
    folder = tmp_path_factory.mktemp("comparison")
    (folder / "text.txt").write_text("\n\n".join(DOCUMENTS))
    names = ["one", "two", "short"]
    limits = [[], ["--windows", "blocked", "--block", 4], ["--limit-tokens", 40]]
    for name, options in zip(names, limits, strict=True):
        out = ["--lm", tiny_folders["llama"], *MODEL_LENGTH, *options, "--out", folder / name]
        done("eval", folder / "text.txt", *out)
    return folder


def test_figures_are_those_of_the_targets(runs: Path) -> None:
    one, two = read_tokens(runs / "one"), read_tokens(runs / "two")
    compared = compare_runs([runs / "one", runs / "two"], documents="^= .* =$")
    first, second = compared.runs
    assert compared.targets == len(one.texts)
    assert compared.documents == len(DOCUMENTS)
    assert first.token_perplexity == pytest.approx(np.exp(-one.log_probs_T.mean(dtype=np.float64)))
    assert first.change is None
    assert first.change_interval is None
    assert second.change == pytest.approx(
        np.exp(one.log_probs_T.mean(dtype=np.float64) - two.log_probs_T.mean(dtype=np.float64)) - 1
    )

    text = one.before + "".join(one.texts)
    assert text == "\n\n".join(DOCUMENTS)
    begins = [text.index(f"= Doc {number} =") for number in range(5)]
    end, sums, counts = len(one.before), np.zeros((5, 2)), np.zeros(5, dtype=np.int64)
    for piece, a, b in zip(one.texts, one.log_probs_T.tolist(), two.log_probs_T.tolist(), strict=True):
        end += len(piece)
        document = sum(begin < end for begin in begins) - 1
        sums[document] -= [a, b]
        counts[document] += 1
    drawn = bootstrap_means(sums, counts)
    assert second.change_interval is not None
    np.testing.assert_allclose(second.change_interval, interval(np.expm1(drawn[:, 1] - drawn[:, 0])))


def test_a_run_equals_itself(runs: Path) -> None:
    same = compare_runs([runs / "one", runs / "one"], documents="^= .* =$").runs[1]
    assert same.change == 0
    assert same.change_interval == (0, 0)


def test_stretches_without_documents(runs: Path) -> None:
    targets = compare_runs([runs / "one"], documents="^= .* =$").targets
    if targets <= TARGETS_PER_DOCUMENT:
        with pytest.raises(UsageError, match="single document"):
            compare_runs([runs / "one"])
    else:
        assert compare_runs([runs / "one"]).documents == -(-targets // TARGETS_PER_DOCUMENT)


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
    assert all(words in done(*two).out for words in ("against the first", "over 5 documents"))
    assert printed(*two)["documents"] == 5
    for flag, value in (("--html", tmp_path / "page.html"), ("--tokens", 3), ("--questions", 3)):
        failed(ralm(*two, flag, value), 2, f"{flag} has no effect without a single run")
    failed(ralm("report", runs / "one", "--latex"), 2, "--latex has no effect without several runs")

"""Comparing runs: figures against plain sums, and runs that cannot be compared."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ralm
from ralm.errors import DamagedFolderError, FolderError, UsageError
from ralm.evaluation.intervals import STRETCH, Units, compare
from ralm.runs.run import compare_runs
from tests.cli.program import done, failed, printed, ralm as command
from tests.fakes import CountingModel, WordTokenizer
from tests.fuzz.mutations import mend

DOCUMENTS = [f"the dog and the cat number {number} keep the sheep on the hill. " * (4 + number) for number in range(12)]
PLAN = ralm.PlanOptions(max_length=64, document_tokens=16)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs over documents in two ways, `one` and `two`, over fewer of their tokens, and over one text."""
    folder = tmp_path_factory.mktemp("comparison")
    model = CountingModel(WordTokenizer(), vocabulary=60, max_length=64)
    blocked = replace(PLAN, windows="blocked", block=16)
    ralm.run_evaluation(folder / "one", DOCUMENTS, model, PLAN)
    ralm.run_evaluation(folder / "two", DOCUMENTS, model, blocked)
    ralm.run_evaluation(folder / "short", DOCUMENTS, model, PLAN, limit_tokens=40)
    ralm.run_evaluation(folder / "whole", " ".join(DOCUMENTS), model, PLAN)
    ralm.run_evaluation(folder / "whole-two", " ".join(DOCUMENTS), model, blocked)
    (folder / "text.txt").write_text("no run")
    return folder


def test_figures_are_those_of_the_targets(runs: Path) -> None:
    compared = compare_runs([runs / "one", runs / "two"])
    tables = [pq.read_table(runs / name / "tokens.parquet") for name in ("one", "two")]
    document_T = tables[0]["document"].to_numpy()
    first_T, second_T = (-table["log_prob"].to_numpy().astype(np.float64) for table in tables)
    assert (compared.units, compared.noun) == (len(DOCUMENTS), "documents")
    assert compared.figures["token_perplexity"][0].value == pytest.approx(np.exp(first_T.mean()))
    change = compared.changes["token_perplexity"][1]
    assert change.value == pytest.approx(np.exp(second_T.mean() - first_T.mean()) - 1)
    sums = [np.array([values_T[document_T == one].sum() for one in range(12)]) for values_T in (first_T, second_T)]
    counts_U = np.bincount(document_T)
    expected = compare(Units(sums[1], counts_U), Units(sums[0], counts_U), "perplexity")
    assert change.ends == pytest.approx(expected.ends)
    assert 0 not in compared.changes["token_perplexity"], "the first run is compared with nothing"


def test_stretches_without_documents(runs: Path) -> None:
    compared = compare_runs([runs / "whole", runs / "whole-two"])
    targets = pq.read_table(runs / "whole" / "tokens.parquet").num_rows
    assert (compared.units, compared.noun) == (-(-targets // STRETCH), "stretches")


@pytest.mark.parametrize("other", ["short", "whole"])
def test_other_targets_are_refused(runs: Path, other: str) -> None:
    with pytest.raises(UsageError, match="different targets"):
        compare_runs([runs / "one", runs / other])


@pytest.mark.parametrize("file", ["units.parquet", "manifest.json"])
def test_what_is_no_run(runs: Path, tmp_path: Path, file: str) -> None:
    with pytest.raises(FolderError):
        compare_runs([runs / "text.txt"])
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for source in (runs / "one").iterdir():
        content = source.read_bytes()
        (damaged / source.name).write_bytes(content[:-9] if source.name == file else content)
    with pytest.raises(DamagedFolderError):
        compare_runs([damaged])
    units = pq.read_table(runs / "one" / "units.parquet")
    unknown = pa.repeat("median", units.num_rows)
    pq.write_table(units.set_column(1, "statistic", unknown), damaged / "units.parquet")
    (damaged / "manifest.json").write_bytes((runs / "one" / "manifest.json").read_bytes())
    mend(damaged)
    with pytest.raises(DamagedFolderError, match="unknown statistic"):
        compare_runs([damaged])


def test_the_command(runs: Path, tmp_path: Path) -> None:
    two = ["report", runs / "one", runs / "two"]
    shown = done(*two).out
    assert all(words in shown for words in ("change from the first", "12 documents: 95% intervals")), shown
    assert printed(*two)["documents"] == 12
    failed(command(*two, "--html", tmp_path / "page.html"), 2, "--html shows the text of a single run")

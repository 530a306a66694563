"""The figures of docs/reference-figures.md: the page shows those of its file, and `make golden` measures them again."""

import json
import os
from pathlib import Path

import pytest

from benchmarks.reference_figures import FIGURES, PAGE, ROWS, measure, prepare, tables
from ralm.errors import RalmError
from ralm.lm.registry import load_language_model
from tests.shared_data import shared


def test_the_page_shows_the_figures_of_its_file() -> None:
    shown = "\n".join(tables(json.loads(FIGURES.read_text(encoding="utf-8"))))
    assert PAGE.read_text(encoding="utf-8").endswith(f"{shown}\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("figures")


@pytest.mark.skipif(os.environ.get("RALM_GOLDEN") != "all", reason="takes minutes: RALM_GOLDEN=all")
@pytest.mark.parametrize("name", json.loads(FIGURES.read_text(encoding="utf-8")))
def test_a_command_has_the_figures_that_it_had(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, (source, _, model) = shared("data"), name.partition(", ")
    [row] = [row for row in ROWS if row.name == source]
    try:
        load_language_model(model)
    except RalmError as error:
        pytest.skip(str(error))
    monkeypatch.chdir(folder)
    prepare(data)
    expected = json.loads(FIGURES.read_text(encoding="utf-8"))[name]
    assert measure(row, model, data) == pytest.approx(expected, rel=1e-3)

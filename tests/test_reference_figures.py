"""The figures of docs/reference-figures.md: the page shows those of its file, and `make golden` measures them again."""

import json
import os
from pathlib import Path

import pytest

from benchmarks.reference_figures import FIGURES, MODELS, PAGE, ROWS, Row, measure, prepare, tables
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
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_command_has_the_figures_that_it_had(
    row: Row, model: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = shared("data")
    try:
        load_language_model(model)
    except RalmError as error:
        pytest.skip(str(error))
    monkeypatch.chdir(folder)
    prepare(data)
    expected = json.loads(FIGURES.read_text(encoding="utf-8"))[f"{row.name}, {model}"]
    assert measure(row, model, data) == pytest.approx(expected, rel=1e-3)

"""Every recipe runs with stand-ins, from index to figure, and finds its steps again."""

import json
import shlex
from pathlib import Path

import pytest

from ralm.recipes import inputs
from ralm.recipes.catalogue import recipes
from ralm.recipes.recipe import STAND_IN_SCALE
from ralm.recipes.results import FIGURE, JSON, MARKDOWN, RECIPE_KIND, folder_name
from ralm.storage.manifest import read_manifest
from tests.cli.program import ralm
from tests.documentation import a_third

RECIPES = recipes(STAND_IN_SCALE)
SHORT = ["--limit-tokens", "448"]
"""A window of 384 tokens, which the official semantics read without retrieval, and a block of 64."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


SAMPLE = ("in-context-ralm/table-2", "in-context-ralm/figure-8")


@pytest.mark.parametrize(
    "names", [pytest.param(SAMPLE, id="sample"), pytest.param(tuple(RECIPES), id="all", marks=pytest.mark.campaign)]
)
def test_every_recipe_runs_from_index_to_figure(
    names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in one folder, as one would run them: they share steps. A third of the documents take a third of the time to
    index and to encode. What steps leave is not collected between them: all that tests have loaded would be looked
    through each time."""
    monkeypatch.setattr("ralm.cli.models.gc.collect", lambda: 0)
    monkeypatch.setattr(inputs, "standard_library_documentation", a_third)
    for name in names:
        recipe = RECIPES[name]
        run = ["recipe", name, "--stand-in", "--out", tmp_path]
        if any("--limit-tokens" in step.words for step in recipe.steps):
            run += SHORT
        answer = ralm(*run)
        assert answer.status == 0, (name, answer.err)
        folder = tmp_path / "tables" / folder_name(name)
        check_result(name, folder, tmp_path, answer.out)
        if names != SAMPLE:
            continue
        written = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}
        again = ralm(*run)
        assert again.status == 0, (name, again.err)
        steps = [line for line in again.err.splitlines() if line.startswith("ralm: [")]
        assert steps, name
        assert all(line.endswith("done before") for line in steps), again.err
        assert written == {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}


def check_result(name: str, folder: Path, out: Path, said: str) -> None:
    recipe = RECIPES[name]
    read_manifest(folder, kind=RECIPE_KIND)
    text = (folder / MARKDOWN).read_text()
    assert "STAND-IN" in text, name
    assert "STAND-IN" in said, name
    assert (folder / FIGURE).exists() == (recipe.figure is not None), name
    rows = json.loads((folder / JSON).read_text())["cells"]
    measured = [row for row in rows if row["measure"]]
    assert measured, name
    for row in measured:
        assert row["stand_in"] is True
        assert row["difference"] is None, "a stand-in's figure is not compared with the paper's"
        assert row["value"] is not None or "of a million passages" in row["how"], (name, row)
        assert all((out / step).exists() for step in row["folder"].split()), (name, row)
        assert row["command"].startswith("ralm "), row
    for row in rows:
        assert row["measure"] or row["why_not"], (name, row)
    published = {cell.published for cell in recipe.cells if cell.published is not None}
    assert {row["published"] for row in rows if row["published"] is not None} == published, "also of models beside"
    assert all(row["model"].startswith("ralm-tiny for ") for row in measured)
    if recipe.orders:
        assert ("Orders to expect" if recipe.is_analysis else "Orders that the paper reports") in text, name


def test_readings_of_a_text_share_what_is_retrieved() -> None:
    """Table 1's three ways of choosing read one file of passages for each corpus."""
    steps = RECIPES["in-context-ralm/table-1"].steps
    evaluations = [step for step in steps if step.command == "eval" and "--retrieved" in step.words]
    read = {one for step in evaluations for one in step.steps if one.command == "retrieve"}
    assert len(evaluations) == 4 * (5 * 2 + 1), "four models; BM25 and zero-shot on five corpora, predictive on one"
    assert len(read) == 5


def test_a_script_does_what_the_recipe_does(tmp_path: Path) -> None:
    """Afterwards the recipe finds every step, and writes its table."""
    run = ["recipe", "analysis/oracle-by-candidates", "--stand-in", *SHORT, "--out", tmp_path / "out"]
    for line in ralm(*run, "--dry-run").out.splitlines():
        if line.startswith("ralm "):
            answer = ralm(*shlex.split(line)[1:])
            assert answer.status == 0, (line, answer.err)
    assert "# 0 of " in ralm(*run, "--dry-run").out
    answer = ralm(*run)
    assert answer.status == 0, answer.err
    assert [line for line in answer.err.splitlines() if line.startswith("ralm: [") and "done before" not in line] == []

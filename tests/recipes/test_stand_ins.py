"""Every recipe runs with stand-ins, from index to figure, goes on after a kill, and does what its script does."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ralm.recipes import inputs
from ralm.recipes.catalogue import RecipeFolder, recipes
from ralm.recipes.results import FIGURE, JSON, MARKDOWN, RECIPE_KIND
from ralm.storage.manifest import read_manifest
from tests.cli.program import done, ralm
from tests.documentation import a_third

SHORT = ["--limit-tokens", "448"]
"""A window of 384 tokens, which the official semantics read without retrieval, and a block of 64."""
SAMPLE = ("in-context-ralm/table-2", "in-context-ralm/figure-8")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(SAMPLE, id="sample"),
        pytest.param(tuple(recipes(RecipeFolder())), id="all", marks=pytest.mark.campaign),
    ],
)
def test_every_recipe_runs_from_index_to_figure(
    names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in one folder, as one would run them: they share steps. A third of the documents take a third of the time to
    index and to encode. What steps leave is not collected between them: all that tests have loaded would be looked
    through each time."""
    monkeypatch.setattr("ralm.cli.process.gc.collect", lambda: 0)
    monkeypatch.setattr(inputs, "standard_library_documentation", a_third)
    place = RecipeFolder(tmp_path, stand_in=True)
    for name, recipe in recipes(place).items():
        if name not in names:
            continue
        is_of_text = any("--limit-tokens" in step.words for step in recipe.steps)
        run = ["recipe", "run", name, "--stand-in", "--out", tmp_path, *(SHORT if is_of_text else [])]
        said = done(*run)
        folder = place.table_of(name)
        read_manifest(folder, kind=RECIPE_KIND)
        assert "**STAND-IN" in said.out, name
        assert (folder / MARKDOWN).read_text().startswith(said.out.partition("\n\nWith the command")[0]), name
        assert (folder / FIGURE).exists() == bool(recipe.over), name
        result = json.loads((folder / JSON).read_text())
        assert bool(result["orders"]) == bool(recipe.orders), name
        check_cells(name, result["cells"], tmp_path)
        published = {cell.published for cell in recipe.cells if cell.published is not None}
        assert {row["published"] for row in result["cells"] if row["published"] is not None} == published, name
        if names == SAMPLE:
            again = ralm(*run)
            steps = [line for line in again.err.splitlines() if line.startswith("ralm: [")]
            assert steps, again.err
            assert all(line.endswith("done before") for line in steps), again.err
            assert json.loads((folder / JSON).read_text()) == result


def check_cells(name: str, rows: list[dict[str, Any]], out: Path) -> None:
    measured = [row for row in rows if row["command"]]
    assert measured, name
    for row in measured:
        assert row["difference"] is None, "a stand-in's figure is not compared with the paper's"
        assert row["value"] is not None or "of a million passages" in row["how"], (name, row)
        assert all((out / step).exists() for step in row["folder"].split()), (name, row)
        assert row["command"].startswith("ralm "), row
        assert row["model"].startswith("ralm-tiny for "), row
        of_official_blocks = {"--retrieved", "official", "blocked"} <= {*row["command"].split()}
        if of_official_blocks and row["value"] is not None:
            assert "tokens with a passage" in row["notes"], (name, row)
    for row in rows:
        assert row["command"] or row["notes"], (name, row)


def test_a_script_and_a_run_that_was_ended_give_the_same_table(tmp_path: Path) -> None:
    """A script makes the steps of the recipe; those that are left are made by the run that goes on."""
    run = ["in-context-ralm/table-2", "--stand-in", *SHORT, "--json", "--out"]
    scripted, ended = tmp_path / "scripted", tmp_path / "ended"
    script = done("recipe", "show", *run[:-2], "--out", scripted).out
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = ["bash", "-c", f'ralm() {{ python -m ralm "$@"; }}\nset -e\n{script}']
    subprocess.run(shell, env={**os.environ, "PATH": here}, check=True, capture_output=True)
    shutil.copytree(scripted, ended)
    evaluations = sorted((ended / "steps").glob("eval-*"))
    shutil.rmtree(evaluations[0])

    continued, found = (ralm("recipe", "run", *run, out) for out in (ended, scripted))
    result, undisturbed = json.loads(continued.out), json.loads(found.out)
    perplexities = {json.loads((step / "summary.json").read_text())["word_perplexity"] for step in evaluations[1:]}
    assert perplexities <= {row["value"] for row in undisturbed["cells"]}
    for answer, made in ((continued, 1), (found, 0)):
        assert answer.err.count("ralm: [") - answer.err.count("done before") == made, answer.err
    rows, expected = ([*part["cells"], *part["orders"]] for part in (result, undisturbed))
    for row, other in zip(rows, expected, strict=True):
        numbers = [key for key, value in other.items() if isinstance(value, float)]
        assert [row[key] for key in numbers] == pytest.approx([other[key] for key in numbers], rel=1e-6, abs=1e-7)
        assert {**row, **dict.fromkeys(["command", *numbers])} == {**other, **dict.fromkeys(["command", *numbers])}


@pytest.mark.campaign
def test_a_part_and_a_changed_run_say_so(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three four five six. " * 40)
    run = ["recipe", "run", "in-context-ralm/table-2", "--out", tmp_path / "out", "--only", "LLaMA-7B"]
    run += ["--use", f"wikitext-103-test={text}", "--use", f"wikitext-103-dev={text}", "--use", "llama-7b=ralm-tiny"]
    (tmp_path / "titles.txt").write_text("none of these")
    run += ["--use", f"wikitext-103-titles={tmp_path / 'titles.txt'}"]
    (tmp_path / "corpus.jsonl").write_text('{"text": "five six one two"}\n')
    run += ["--use", f"wikipedia-2018={tmp_path / 'corpus.jsonl'}"]
    assert "CHANGED: wikitext-103-test is" in done(*run).out
    folder = tmp_path / "out" / "tables" / "in-context-ralm-table-2-only-llama-7b"
    rows = json.loads((folder / JSON).read_text())["cells"]
    assert {row["model"] for row in rows} == {"ralm-tiny for LLaMA-7B"}
    assert all(row["difference"] == pytest.approx(row["value"] - row["published"]) for row in rows)
    assert "texts have 90 tokens" in done(*run, "--limit-tokens", 90).out
    assert all(row["difference"] is None for row in json.loads((folder / JSON).read_text())["cells"])
    assert "ralm index" in (folder / MARKDOWN).read_text(), "where the passages come from is told, too"

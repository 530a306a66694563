"""Tables and figures say what their figures are of, and can be read."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure as Drawn

from ralm.evaluation.intervals import Units
from ralm.recipes import results
from ralm.recipes.catalogue import RecipeFolder, recipe_named
from ralm.recipes.measures import Sample
from ralm.recipes.recipe import Measure


@pytest.fixture(autouse=True)
def made_up_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure for each measure, without its steps; zero-shot reranking read almost no passage."""

    def sample_of(measure: Measure) -> Sample:
        draws = np.random.default_rng(len(measure.steps[-1].path.name))
        return Sample(units=Units.each(draws.uniform(2, 3, size=20)), statistic="perplexity")

    monkeypatch.setattr(results, "sample_of", sample_of)
    monkeypatch.setattr(results, "targets_with_passage", lambda run: (19, 100))


def result_of(name: str, place: RecipeFolder) -> results.Row:
    return results.measure_recipe(recipe_named(name, place), [], stand_in=place.stand_in, is_partial=False)


def test_a_stand_in_cell_says_what_it_repeats_and_that_it_read_almost_no_passage() -> None:
    cells = result_of("in-context-ralm/table-3", RecipeFolder(stand_in=True))["cells"]
    told = {(row["model"], row["column"]): row["notes"] for row in cells if row["how"] == "ranked by itself"}
    little = "only 19 of 100 tokens with a passage"
    first, second = "WikiText-103, word perplexity", "RealNews, token perplexity"
    assert told == {
        ("ralm-tiny for GPT-2 M", first): little,
        ("ralm-tiny for GPT-2 M", second): f"same text as {first}; {little}",
        **{
            (model, column): "same stand-in as GPT-2 M"
            for model in ("GPT-2 L", "GPT-2 XL")
            for column in (first, second)
        },
    }


def test_figures_of_models_of_ones_own_are_compared_with_the_papers() -> None:
    place = RecipeFolder(replacements={"llama-7b": "models/mine"})
    result = result_of("in-context-ralm/table-2", place)
    cells = result["cells"]
    assert [row["model"] for row in cells[::2]] == ["mine for LLaMA-7B", "LLaMA-13B", "LLaMA-33B"]
    assert all(row["difference"] == row["value"] - row["published"] for row in cells)
    assert "| mine for LLaMA-7B | none | WikiText-103, word perplexity | 9.9 | " in results.as_markdown(
        recipe_named("in-context-ralm/table-2", place), result
    )


@pytest.mark.parametrize(
    "name", ["in-context-ralm/table-1", "in-context-ralm/figure-4", "replug/figure-6", "replug/figure-7"]
)
def test_a_figure_can_be_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels are apart, lines have colours of their own, and the legend is beside the data."""
    drawn: list[Any] = []
    monkeypatch.setattr(Drawn, "savefig", lambda figure, _: drawn.append(figure))
    monkeypatch.setattr("ralm.storage.manifest.write_manifest", lambda *_, **__: None)
    recipe = recipe_named(name)
    results.write_result(recipe, result_of(name, RecipeFolder()), tmp_path / "table")
    [figure] = drawn
    figure.draw_without_rendering()
    assert len(figure.axes) == len({cell.column for cell in recipe.cells})
    for axes in figure.axes:
        for labels in (axes.get_yticklabels(), axes.get_xticklabels()):
            for label, following in neighbours([label for label in labels if label.get_text()]):
                assert not label.overlaps(following), name
        assert not axes.get_legend().get_window_extent().overlaps(axes.get_window_extent()), name
        colours = [line.get_color() for line in axes.get_lines()]
        assert len({*colours}) == len(colours), name


def neighbours(labels: list[Any]) -> Iterator[tuple[Any, Any]]:
    """The boxes of labels that stand beside each other."""
    return pairwise(label.get_window_extent() for label in labels)


def test_the_contamination_curve_begins_at_0_on_a_logarithmic_axis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scales: list[str] = []
    monkeypatch.setattr(Drawn, "savefig", lambda figure, _: scales.extend(axes.get_xscale() for axes in figure.axes))
    recipe = recipe_named("analysis/contamination")
    results.write_result(recipe, result_of(recipe.name, RecipeFolder()), tmp_path / "table")
    assert scales == ["symlog", "symlog"]

"""Recipes are made of their data: commands of the program, and cells that say where they come from."""

from pathlib import Path

import pytest

from ralm.cli import program as all_commands
from ralm.recipes.catalogue import RecipeFolder, recipe_named, recipes
from ralm.recipes.recipe import RESOURCES, Step, in_order

FULL, SMALL = RecipeFolder(), RecipeFolder(stand_in=True)
PLACES = pytest.mark.parametrize("place", [FULL, SMALL], ids=["full", "stand-in"])
NAMED = RecipeFolder(replacements={name: name for name in RESOURCES}, stand_in=True)
"""Small recipes whose steps read resources by their names."""


def spelt(step: Step) -> list[str]:
    """The words of a step without its output, with `a-step` in place of the results of others."""
    return ["a-step" if word.startswith("OUT/steps") else word for word in step.words[1:-2]]


def test_every_table_and_figure_is_there() -> None:
    names = [name.partition("/") for name in recipes(FULL)]
    assert [len([1 for paper, *_ in names if paper == one]) for one in ("in-context-ralm", "replug", "analysis")] == [
        *(14, 8, 4),
    ]


@PLACES
def test_every_step_is_a_command_of_the_program(place: RecipeFolder) -> None:
    program = all_commands()
    for step in {step for recipe in recipes(place).values() for step in recipe.steps if step.words[0] == "ralm"}:
        command, arguments = program, [*step.words[1:]]
        while hasattr(command, "commands"):
            name, *arguments = arguments
            command = command.commands[name]
        with command.make_context("ralm", arguments, resilient_parsing=False) as context:
            assert context.params["out"] is not None


def test_a_recipe_is_made_of_its_data() -> None:
    recipe = recipe_named("in-context-ralm/table-3", NAMED, only="GPT-2 M")
    cell = recipe.cells[0]
    assert (cell.how, cell.column, cell.published) == ("ranked by GPT-2 S", "WikiText-103, word perplexity", 20.8)
    assert cell.measure is not None
    assert [spelt(step) for step in in_order(cell.measure.steps)] == [
        ["index", "wikipedia-2018", "--analyser", "lucene", "--forbidden-titles", "wikitext-103-titles"],
        [
            *["retrieve", "wikitext-103-test", "--lm", "gpt2", "--index", "a-step", "-k", "6", "--retriever", "bm25"],
            *["--semantics", "official", "--stride", "4", "--windows", "blocked", "--block", "64"],
            *["--max-length", "384", "--query-tokens", "32", "--limit-tokens", "2000"],
        ],
        [
            *["eval", "wikitext-103-test", "--lm", "gpt2-medium", "--retrieved", "a-step"],
            *["--rerank", "zero-shot:candidates=6,tokens=16,lm=gpt2", "--semantics", "official", "--stride", "4"],
            *["--windows", "blocked", "--block", "64", "--max-length", "384", "--document-tokens", "128"],
            *["--limit-tokens", "2000"],
        ],
    ]


def test_figures_of_models_that_cannot_be_run_are_the_papers() -> None:
    cells = recipe_named("replug/table-1").cells
    [davinci] = [cell for cell in cells if (cell.model, cell.how, cell.published) == ("GPT-3 Davinci", "REPLUG", 0.77)]
    assert (davinci.column, davinci.measure, davinci.why_not) == ("The Pile, bits per byte", None, "the paper's alone")
    assert all(cell.published is not None for cell in cells)


def test_steps_come_after_what_they_need() -> None:
    first = Step(Path("index"), ())
    second = Step(Path("passages"), (), (first,))
    third, fourth = Step(Path("run"), (), (second,)), Step(Path("other"), (), (second,))
    assert in_order([fourth, third]) == [first, second, fourth, third]


def test_texts_name_what_is_run() -> None:
    full, small = (recipe_named("replug/table-3", place) for place in (FULL, SMALL))
    assert "with 16 demonstrations" in full.about
    assert "each of 10 passages" in full.about
    assert "with 2 demonstrations" in small.about
    assert "each of 4 passages" in small.about
    assert "the first 2 of the training sets" in small.differs[1]
    assert not any("{" in text for one in recipes(FULL).values() for text in (one.about, *one.differs))


def test_one_model_is_a_part_of_a_recipe() -> None:
    whole = recipe_named("in-context-ralm/table-1")
    part = recipe_named("in-context-ralm/table-1", only="GPT-2 M")
    assert {cell.model for cell in part.cells} == {"GPT-2 M"}
    assert len(part.cells) == len(whole.cells) // 4
    assert part.orders
    assert all("GPT-2 M" in order.text for order in part.orders)
    assert "gpt2-medium" in part.resources
    assert "gpt2-xl" not in part.resources


@PLACES
def test_recipes_say_where_their_figures_come_from(place: RecipeFolder) -> None:
    for name, recipe in recipes(place).items():
        places = [(cell.model, cell.how, cell.column, cell.at) for cell in recipe.cells]
        assert len(places) == len(set(places)), f"{name} has a cell twice"
        for cell in recipe.cells:
            assert (cell.measure is None) == bool(cell.why_not), (name, cell)
        assert recipe.models, name


def test_readings_of_a_text_share_what_is_retrieved() -> None:
    """Table 1's three ways of choosing read one file of passages for each corpus."""
    evaluations = [step for step in recipe_named("in-context-ralm/table-1").steps if "--retrieved" in step.words]
    assert len(evaluations) == 4 * (5 * 2 + 1), "four models; BM25 and zero-shot on five corpora, predictive on one"
    assert len({step.words[step.words.index("--retrieved") + 1] for step in evaluations}) == 5

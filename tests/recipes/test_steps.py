"""Recipes are made of their data: commands of the program, and cells that say where they come from."""

import pytest

from ralm.cli import program as all_commands
from ralm.recipes.catalogue import recipe_named, recipes
from ralm.recipes.recipe import FULL_SCALE, STAND_IN_SCALE, Scale
from ralm.recipes.steps import RESOURCES, NameOf, Resource, Step, Word, in_order


def spelt(step: Step) -> list[str]:
    """The words of a step with names in place of resources and steps."""

    def text(word: Word) -> str:
        match word:
            case Resource(name=name):
                return name
            case Step() | NameOf():
                return "a-step"
            case tuple():
                return "".join(map(text, word))
            case _:
                return word

    return [*step.command.split(), *map(text, step.words), "--out", "out"]


@pytest.mark.parametrize("scale", [FULL_SCALE, STAND_IN_SCALE], ids=["full", "stand-in"])
def test_every_step_is_a_command_of_the_program(scale: Scale) -> None:
    program = all_commands()
    for step in {step for recipe in recipes(scale).values() for step in recipe.steps}:
        command, arguments = program, spelt(step)
        while hasattr(command, "commands"):
            name, *arguments = arguments
            command = command.commands[name]
        with command.make_context("ralm", arguments, resilient_parsing=False) as context:
            assert context.params["out"] is not None


def test_a_recipe_is_made_of_its_data() -> None:
    recipe = recipe_named("in-context-ralm/table-3", STAND_IN_SCALE, only="GPT-2 M")
    cell = recipe.cells[0]
    assert (cell.how, cell.column, cell.published) == ("ranked by GPT-2 S", "WikiText-103, word perplexity", 20.8)
    assert cell.measure is not None
    assert [spelt(step)[:-2] for step in in_order(cell.measure.steps)] == [
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
    assert (davinci.column, davinci.measure, davinci.why_not) == ("The Pile, bits per byte", None, "no longer offered")
    assert all(cell.published is not None for cell in cells)


def test_steps_come_after_what_they_need() -> None:
    first = Step("index", (RESOURCES["wikipedia-2018"],))
    second = Step("retrieve", ("--index", first))
    third, fourth = Step("eval", ("--retrieved", second)), Step("eval", (("--rerank=", NameOf(second)),))
    assert in_order([fourth, third]) == [first, second, fourth, third]


def test_texts_name_what_is_run() -> None:
    full, small = (recipes(scale)["replug/table-3"] for scale in (FULL_SCALE, STAND_IN_SCALE))
    assert "with 16 demonstrations" in full.about
    assert "each of 10 passages" in full.about
    assert "with 2 demonstrations" in small.about
    assert "each of 4 passages" in small.about
    assert "the first 2 of the training sets" in small.differs[1]
    assert not any("{" in text for one in recipes().values() for text in (one.about, *one.differs))


def test_one_model_is_a_part_of_a_recipe() -> None:
    whole = recipe_named("in-context-ralm/table-1")
    part = recipe_named("in-context-ralm/table-1", only="GPT-2 M")
    assert {cell.model for cell in part.cells} == {"GPT-2 M"}
    assert len(part.cells) == len(whole.cells) // 4
    assert part.orders
    assert all("GPT-2 M" in order.text for order in part.orders)
    read = {resource.name for step in part.steps if step.command == "eval" for resource in step.resources}
    assert "gpt2-medium" in read
    assert "gpt2-xl" not in read


@pytest.mark.parametrize("scale", [FULL_SCALE, STAND_IN_SCALE], ids=["full", "stand-in"])
def test_recipes_say_where_their_figures_come_from(scale: Scale) -> None:
    for name, recipe in recipes(scale).items():
        places = [(cell.model, cell.how, cell.column, cell.at) for cell in recipe.cells]
        assert len(places) == len(set(places)), f"{name} has a cell twice"
        for cell in recipe.cells:
            assert (cell.measure is None) == bool(cell.why_not), (name, cell)
        assert recipe.models, name

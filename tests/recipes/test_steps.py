"""Steps are commands of the program, and records become its flags."""

from dataclasses import replace

import pytest

from ralm.cli import program as all_commands
from ralm.options import flags_of
from ralm.reading import ReadingOptions
from ralm.reading.plan import PlanOptions
from ralm.recipes.catalogue import recipe_named, recipes
from ralm.recipes.recipe import FULL_SCALE, STAND_IN_SCALE, Scale
from ralm.recipes.resources import GPT2, WIKITEXT_TEST, WIKITEXT_TRAIN, Resource
from ralm.recipes.steps import NameOf, Step, eval_step, in_order, index_step, retrieve_step


def spelt(step: Step) -> list[str]:
    """The arguments of a step with names in place of resources and steps."""

    def text(argument: object) -> str:
        match argument:
            case Resource(name=name):
                return name
            case Step() | NameOf():
                return "a-step"
            case _:
                return str(argument)

    return [*step.command.split(), *map(text, step.arguments), "--out", "out"]


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


def test_the_plan_of_a_step_is_the_one_that_was_asked_for() -> None:
    plan = PlanOptions(semantics="official", stride=8, windows="blocked", block=64)
    reading = ReadingOptions(reader="ensemble:documents=3", mixer="uniform")
    found = retrieve_step(WIKITEXT_TEST, GPT2[0], index_step(WIKITEXT_TRAIN), plan, k=3)
    step = eval_step(WIKITEXT_TEST, GPT2[0], plan, retrieved=found, reading=reading, limit_tokens=90)
    assert spelt(step)[1:-2] == [
        *["wikitext-103-test", "--lm", "gpt2", "--retrieved", "a-step", "--reader", "ensemble:documents=3"],
        *["--mixer", "uniform", "--semantics", "official", "--stride", "8", "--windows", "blocked", "--block", "64"],
        *["--limit-tokens", "90"],
    ]


def test_flags_tell_only_what_differs() -> None:
    base = PlanOptions()
    assert flags_of(base, base) == []
    assert flags_of(replace(base, bos="never", stride=8), base) == ["--stride", "8", "--bos", "never"]
    assert flags_of(base, base, ("stride",)) == ["--stride", "4"]


def test_steps_come_after_what_they_need() -> None:
    own = index_step(WIKITEXT_TRAIN)
    found = retrieve_step(WIKITEXT_TEST, GPT2[0], own, PlanOptions(), k=2)
    first = eval_step(WIKITEXT_TEST, GPT2[0], PlanOptions(), retrieved=found)
    second = eval_step(WIKITEXT_TEST, GPT2[1], PlanOptions(), retrieved=found)
    assert in_order([first, second]) == [own, found, first, second]


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

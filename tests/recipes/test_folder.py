"""A step is found again by everything that decides it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralm.errors import DamagedFolderError, UsageError
from ralm.lm.api.endpoint import ApiOptions
from ralm.lm.registry import ModelOptions
from ralm.recipes.catalogue import recipe_named
from ralm.recipes.folder import MARK, RecipeFolder
from ralm.recipes.runner import script
from ralm.recipes.steps import RESOURCES, Step, Word
from tests.cli.program import failed, ralm

TEXT, CORPUS, GPT2, CONTRIEVER = (
    RESOURCES[name] for name in ("wikitext-103-test", "wikitext-103-train", "gpt2", "contriever")
)
STEP = Step("eval", (TEXT, "--lm", GPT2))
INDEX = Step("index", (CORPUS,))
WITH_TITLES = Step("index", (CORPUS, "--forbidden-titles", RESOURCES["wikitext-103-titles"]))
RETRIEVAL = Step("retrieve", (TEXT, "--lm", GPT2, "--index", INDEX, "-k", "2"))
Named = Callable[..., str]


@pytest.fixture
def name(tmp_path: Path) -> Named:
    """The name of a step's result, with replacements, and options of the model."""

    def named(step: Step, given: dict[str, str] | None = None, **model: Any) -> str:
        return RecipeFolder(tmp_path / "out", given or {}, model=ModelOptions(**model)).path_of(step).name

    return named


def test_what_decides_a_step_is_in_its_name(name: Named, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("one")
    given = {TEXT.name: str(file)}
    names = [name(STEP), name(STEP, given)]
    file.write_text("two")
    names.append(name(STEP, given))
    names.append(name(Step("eval", (TEXT, "--lm", RESOURCES["gpt2-xl"]))))
    names.append(name(Step("eval", (*STEP.words, "--stride", "8"))))
    names.append(name(STEP, dtype="bfloat16"))
    assert len(set(names)) == len(names)
    assert name(STEP, given) == names[2], "the same file has the same name"
    assert name(STEP, ray="auto", device="cpu") == names[0]


@pytest.mark.parametrize(
    ("resource", "file", "step", "prefix"),
    [
        (CORPUS, "corpus.jsonl", INDEX, "file://"),
        (CORPUS, "corpus.jsonl", RETRIEVAL, ""),
        (GPT2, "model/config.json", STEP, ""),
        (TEXT, "text.txt", WITH_TITLES, ""),
    ],
    ids=["behind-a-url", "of-an-earlier-step", "in-a-model", "that-titles-are-taken-from"],
)
def test_the_content_of_a_file_decides(
    name: Named, tmp_path: Path, resource: Any, file: str, step: Step, prefix: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"text": "one"}')
    given = {resource.name: prefix + str(path.parent if resource.kind == "model" else path)}
    first = name(step, given)
    assert first == name(step, given)
    assert first != name(step)
    path.write_text('{"text": "two"}')
    assert name(step, given) != first


def test_the_command_line_of_a_step(tmp_path: Path) -> None:
    model = ModelOptions(dtype="bfloat16", device="cuda", ray="auto")
    place = RecipeFolder(tmp_path / "out", {"gpt2": "mine"}, model=model)
    line = place.command_line(STEP)
    assert line[0] == "eval"
    assert line[2:] == [
        *["--lm", "mine", "--lm-args", "dtype=bfloat16,device=cuda,ray=auto"],
        *["--out", str(place.path_of(STEP))],
    ]
    retrieval = place.command_line(RETRIEVAL)
    assert "--lm-args" not in retrieval
    assert retrieval[-1].endswith(".json")


def test_results_of_another_version_are_not_mixed(tmp_path: Path) -> None:
    place = RecipeFolder(tmp_path / "out")
    (tmp_path / "out" / f".{MARK}.new").mkdir(parents=True)  # what a kill left is in no way
    place.begin()
    mark = json.loads((tmp_path / "out" / MARK).read_text())
    with pytest.raises(UsageError, match="holds results without stand-ins of ralm"):
        RecipeFolder(tmp_path / "out", stand_in=True).check()
    (tmp_path / "out" / MARK).write_text(json.dumps({**mark, "ralm": "0.0.1"}))
    with pytest.raises(UsageError, match=r"holds results without stand-ins of ralm 0\.0\.1"):
        place.check()
    (tmp_path / "out" / MARK).write_text("{")
    with pytest.raises(DamagedFolderError, match="recipes.json cannot be read"):
        place.check()
    with pytest.raises(UsageError, match="is not a folder of recipes, and is not empty"):
        RecipeFolder(tmp_path).check()


def test_options_go_to_the_commands_that_take_them(name: Named, tmp_path: Path) -> None:
    def told(step: Step, given: dict[str, str], **how: Any) -> list[str]:
        return RecipeFolder(tmp_path / "out", given, model=ModelOptions(**how)).command_line(step)

    def dense(*words: Word) -> Step:
        return Step("index", (CORPUS, "--retriever", "dense", "--encoder", CONTRIEVER, *words))

    assert "--encoder-args" not in told(dense(), {}, device="map")
    assert told(dense(), {}, device="cuda:1")[-4:-2] == ["--encoder-args", "device=cuda:1"]
    normal = dense("--encoder-args", "normalize=true")
    assert told(normal, {}, device="cpu")[-4:-2] == ["--encoder-args", "normalize=true,device=cpu"]
    [retriever] = {step for step in recipe_named("replug/table-1").steps if step.command == "train retriever"}
    training = told(retriever, {}, dtype="bfloat16", device="all", ray="auto")
    assert training[-6:-2] == ["--lm-args", "dtype=bfloat16", "--ray", "auto"]
    assert "--device" not in training
    api = {"gpt2": "http://localhost:1/v1#gpt2"}
    asked = told(STEP, api, dtype="bfloat16", device="cuda", api=ApiOptions(top_logprobs=5))
    assert asked[-4:-2] == ["--lm-args", "top_logprobs=5"]
    assert "--lm-args" not in told(STEP, {}, api=ApiOptions(top_logprobs=5))
    first = name(STEP, api)
    for options in (ApiOptions(top_logprobs=5), ApiOptions(tokenizer="gpt2"), ApiOptions(context_length=99)):
        assert name(STEP, api, api=options) != first
    paying = ApiOptions(requests_at_once=4, max_requests=2000, timeout=60, retries=9)
    assert name(STEP, api, api=paying) == first, "a step that was paid for is found"
    assert "requests_at_once=4,timeout=60,retries=9,max_requests=2000" in told(STEP, api, api=paying)


@pytest.mark.campaign
def test_a_part_and_a_changed_run_say_so(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three four five six. " * 40)
    run = ["recipe", "in-context-ralm/table-2", "--out", tmp_path / "out", "--only", "LLaMA-7B"]
    run += ["--use", f"wikitext-103-test={text}", "--use", f"wikitext-103-dev={text}", "--use", "llama-7b=ralm-tiny"]
    (tmp_path / "titles.txt").write_text("none of these")
    run += ["--use", f"wikitext-103-titles={tmp_path / 'titles.txt'}"]
    (tmp_path / "corpus.jsonl").write_text('{"text": "five six one two"}\n')
    run += ["--use", f"wikipedia-2018={tmp_path / 'corpus.jsonl'}"]
    whole = ralm(*run)
    assert whole.status == 0, whole.err
    assert "CHANGED: wikitext-103-test is" in whole.out
    folder = tmp_path / "out" / "tables" / "in-context-ralm-table-2-only-llama-7b"
    rows = json.loads((folder / "table.json").read_text())["cells"]
    assert all(row["difference"] == pytest.approx(row["value"] - row["published"]) for row in rows)
    part = ralm(*run, "--limit-tokens", 90)
    assert part.status == 0, part.err
    assert "texts have 90 tokens" in part.out
    assert all(row["difference"] is None for row in json.loads((folder / "table.json").read_text())["cells"])
    commands = (folder / "table.md").read_text()
    assert "ralm index" in commands, "where the passages come from is told, too"


@pytest.mark.parametrize(
    ("recipe", "options", "status", "said"),
    [
        ("replug/table-3", ["--limit-tokens", "90"], 2, "reads questions, not texts"),
        ("replug/table-3", ["--use", "mmlu=a"], 2, "no resource 'mmlu' here"),
        ("replug/table-3", ["--use", "llama-13b=a", "--use", "llama-13b=b"], 2, "names a resource twice"),
        ("in-context-ralm/table-1", ["--use", "gpt-2=x"], 2, "no resource 'gpt-2' here; did you mean gpt2"),
        ("in-context-ralm/table-1", ["--use", "gpt2"], 2, "--use takes NAME=VALUE"),
        ("in-context-ralm/table-1", ["--only", "GPT-2 XXL"], 2, "that can be run; did you mean GPT-2 XL"),
        ("in-context-ralm/table-2", ["--use", "wikitext-103-test=no.txt"], 1, "the hub: wikitext-103-test (no.txt)"),
        ("replug/table-3", ["--use", "natural-questions=no.jsonl"], 1, "natural-questions (no.jsonl)"),
        ("in-context-ralm/table-2", ["--use", "llama-7b=./no"], 1, "llama-7b (./no)"),
        ("in-context-ralm/tabel-1", [], 2, "did you mean in-context-ralm/table-1"),
        (
            "in-context-ralm/figure-6",
            [],
            1,
            "wikitext-103-dev (hf:Salesforce/wikitext:wikitext-103-v1:validation), gpt2 (gpt2), wikipedia-2018 (",
        ),
    ],
)
def test_what_cannot_run(tmp_path: Path, recipe: str, options: list[str], status: int, said: str) -> None:
    failed(ralm("recipe", recipe, *options, "--out", tmp_path / "out"), status, said)


def test_models_are_named_as_used(tmp_path: Path) -> None:
    recipe = recipe_named("in-context-ralm/table-2")
    own = RecipeFolder(tmp_path / "out", {"llama-7b": "models/mine"}).as_run(recipe)
    assert {cell.model for cell in own.cells} == {"mine for LLaMA-7B", "LLaMA-13B", "LLaMA-33B"}
    assert len(own.cells) == len(recipe.cells)
    assert [order.text for order in own.orders] == [order.text for order in recipe.orders]


def test_a_dry_run_prints_a_script_of_the_steps_and_writes_nothing(tmp_path: Path) -> None:
    run = ["recipe", "in-context-ralm/figure-6", "--out", tmp_path / "out", "--dry-run"]
    answer = ralm(*run, "--json")
    assert answer.status == 0, answer.err
    steps = json.loads(answer.out)["steps"]
    assert [step["command"].split()[1] for step in steps[:3]] == ["eval", "index", "retrieve"]
    assert not any(step["done"] for step in steps)
    assert all(step["command"] in ralm(*run).out.splitlines() for step in steps)
    assert not (tmp_path / "out").exists()


def test_a_script_writes_files_before_what_reads_them_and_leaves_out_what_is_done(tmp_path: Path) -> None:
    place = RecipeFolder(tmp_path / "out")
    place.path_of(RETRIEVAL).parent.mkdir(parents=True)
    place.path_of(RETRIEVAL).touch()
    lines = [*script([WITH_TITLES, STEP, RETRIEVAL], place)]
    written = [line.split()[3] for line in lines if line.startswith("python -m ralm.recipes.inputs ")]
    assert written == ["wikitext-103-train", "wikitext-103-test", "wikitext-103-dev", "wikitext-103-titles"]
    assert [line.split()[1] for line in lines[len(written) :]] == ["index", "eval", "done:"]

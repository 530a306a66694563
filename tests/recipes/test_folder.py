"""A step is found again by everything that decides it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from ralm.errors import DamagedFolderError, UsageError
from ralm.lm.api.endpoint import ApiOptions
from ralm.lm.registry import ModelOptions
from ralm.reading.plan import PlanOptions
from ralm.recipes.folder import MARK, CommandOptions, RecipeFolder, check_replacements
from ralm.recipes.readings import trained_retriever
from ralm.recipes.recipe import FULL_SCALE
from ralm.recipes.resources import CONTRIEVER, GPT2, OPT, WIKITEXT_TEST, WIKITEXT_TITLES, WIKITEXT_TRAIN
from ralm.recipes.steps import Step, eval_step, index_step, retrieve_step
from tests.cli.program import ralm

STEP = eval_step(WIKITEXT_TEST, GPT2[0], PlanOptions())


def name(step: Step, tmp_path: Path, given: dict[str, str] | None = None, options: CommandOptions | None = None) -> str:
    place = RecipeFolder(tmp_path / "out", given or {}, stand_in=False, options=options or CommandOptions())
    return place.path_of(step).name


def test_what_decides_a_step_is_in_its_name(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("one")
    given = {WIKITEXT_TEST.name: str(file)}
    names = [name(STEP, tmp_path), name(STEP, tmp_path, given)]
    file.write_text("two")
    names.append(name(STEP, tmp_path, given))
    names.append(name(eval_step(WIKITEXT_TEST, GPT2[1], PlanOptions()), tmp_path))
    names.append(name(eval_step(WIKITEXT_TEST, GPT2[0], PlanOptions(stride=8)), tmp_path))
    names.append(name(STEP, tmp_path, options=CommandOptions(model=ModelOptions(dtype="bfloat16"))))
    assert len(set(names)) == len(names)
    assert name(STEP, tmp_path, given) == names[2], "the same file has the same name"
    assert name(STEP, tmp_path, options=CommandOptions(model=ModelOptions(device="cpu"), ray="auto")) == names[0]


def test_what_decides_an_earlier_step_decides_a_later_one(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("{}")
    step = retrieve_step(WIKITEXT_TEST, GPT2[0], index_step(WIKITEXT_TRAIN), PlanOptions(), k=2)
    given = {WIKITEXT_TRAIN.name: str(corpus)}
    first = name(step, tmp_path, given)
    corpus.write_text('{"text": "more"}')
    assert name(step, tmp_path, given) != first


def test_what_is_behind_a_url_decides(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"text": "one"}')
    given = {WIKITEXT_TRAIN.name: f"file://{tmp_path}/corpus.jsonl"}
    first = name(index_step(WIKITEXT_TRAIN), tmp_path, given)
    assert name(index_step(WIKITEXT_TRAIN), tmp_path, given) == first
    (tmp_path / "corpus.jsonl").write_text('{"text": "two"}')
    assert name(index_step(WIKITEXT_TRAIN), tmp_path, given) != first


def test_a_file_of_a_model_decides(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    first = name(STEP, tmp_path, {GPT2[0].name: str(model)})
    (model / "config.json").write_text('{"a": 1}')
    assert name(STEP, tmp_path, {GPT2[0].name: str(model)}) != first


def test_titles_depend_on_the_texts_that_they_are_taken_from(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(" = One = \n")
    step = index_step(WIKITEXT_TRAIN, titles=WIKITEXT_TITLES)
    given = {WIKITEXT_TEST.name: str(text)}
    first = name(step, tmp_path, given)
    assert first != name(step, tmp_path)
    file = RecipeFolder(tmp_path / "out", given, stand_in=False, options=CommandOptions()).source_of(WIKITEXT_TITLES)
    text.write_text(" = Two = \n")
    assert name(step, tmp_path, given) != first
    assert (
        RecipeFolder(tmp_path / "out", given, stand_in=False, options=CommandOptions()).source_of(WIKITEXT_TITLES)
        != file
    )


def test_the_command_line_of_a_step(tmp_path: Path) -> None:
    options = CommandOptions(model=ModelOptions(dtype="bfloat16", device="cuda"), ray="auto")
    place = RecipeFolder(tmp_path / "out", {"gpt2": "mine"}, stand_in=False, options=options)
    line = place.command_line(STEP)
    assert line[0] == "eval"
    assert line[2:] == [
        *["--lm", "mine", "--dtype", "bfloat16", "--device", "cuda", "--ray", "auto"],
        *["--out", str(place.path_of(STEP))],
    ]
    retrieval = place.command_line(retrieve_step(WIKITEXT_TEST, OPT[0], index_step(WIKITEXT_TRAIN), PlanOptions(), k=3))
    assert "--ray" not in retrieval
    assert retrieval[-1].endswith(".json")


def test_results_of_another_version_are_not_mixed(tmp_path: Path) -> None:
    place = RecipeFolder(tmp_path / "out", {}, stand_in=False, options=CommandOptions())
    place.begin()
    mark = json.loads((tmp_path / "out" / MARK).read_text())
    with pytest.raises(UsageError, match="holds results with no stand-ins"):
        RecipeFolder(tmp_path / "out", {}, stand_in=True, options=CommandOptions()).check()
    (tmp_path / "out" / MARK).write_text(json.dumps({**mark, "ralm": "0.0.1"}))
    with pytest.raises(UsageError, match=r"holds results of ralm 0\.0\.1"):
        place.check()
    (tmp_path / "out" / MARK).write_text("{")
    with pytest.raises(DamagedFolderError, match="recipes.json cannot be read"):
        place.check()


def test_what_a_kill_left_of_the_mark_is_in_no_way(tmp_path: Path) -> None:
    (tmp_path / "out" / f".{MARK}.partial").mkdir(parents=True)
    place = RecipeFolder(tmp_path / "out", {}, stand_in=False, options=CommandOptions())
    place.begin()
    assert (tmp_path / "out" / MARK).exists()


def test_options_go_to_the_commands_that_take_them(tmp_path: Path) -> None:
    def told(step: Step, given: dict[str, str], **how: Any) -> list[str]:
        options = CommandOptions(model=ModelOptions(**how))
        return RecipeFolder(tmp_path / "out", given, stand_in=False, options=options).command_line(step)

    dense = index_step(WIKITEXT_TRAIN, encoder=CONTRIEVER)
    assert "--device" not in told(dense, {}, device="map")
    assert told(dense, {}, device="cuda:1")[-4:-2] == ["--device", "cuda:1"]
    training = trained_retriever(FULL_SCALE)
    assert "--dtype" in told(training, {}, dtype="bfloat16", device="all")
    assert "--device" not in told(training, {}, dtype="bfloat16", device="all")
    api = {"gpt2": "http://localhost:1/v1#gpt2"}
    asked = told(STEP, api, dtype="bfloat16", device="cuda", api=ApiOptions(top_logprobs=5))
    assert asked[-4:-2] == ["--top-logprobs", "5"]
    assert "--dtype" not in asked
    assert "--device" not in asked
    assert "--top-logprobs" not in told(STEP, {}, api=ApiOptions(top_logprobs=5))
    first = name(STEP, tmp_path, api)
    for options in (ApiOptions(top_logprobs=5), ApiOptions(tokenizer="gpt2"), ApiOptions(context_length=99)):
        assert name(STEP, tmp_path, api, CommandOptions(model=ModelOptions(api=options))) != first
    paying = ApiOptions(requests_at_once=4, max_requests=2000, timeout=60, retries=9)
    assert name(STEP, tmp_path, api, CommandOptions(model=ModelOptions(api=paying))) == first, (
        "a step that was paid for is found"
    )
    flags = told(STEP, api, api=paying)
    for flag, value in (("--requests-at-once", "4"), ("--max-requests", "2000"), ("--retries", "9")):
        assert flags[flags.index(flag) + 1] == value


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
    whole = ralm(*run)
    assert whole.status == 0, whole.err
    assert "CHANGED: wikitext-103-test is" in whole.out
    folder = tmp_path / "out" / "tables" / "in-context-ralm-table-2-only-llama-7b"
    rows = pq.read_table(folder / "cells.parquet").to_pylist()
    assert all(row["difference"] == pytest.approx(row["value"] - row["published"]) for row in rows)
    part = ralm(*run, "--limit-tokens", 90)
    assert part.status == 0, part.err
    assert "texts have 90 tokens" in part.out
    assert all(row["difference"] is None for row in pq.read_table(folder / "cells.parquet").to_pylist())
    commands = (folder / "table.md").read_text()
    assert "ralm index" in commands, "where the passages come from is told, too"


def test_options_without_effect_are_refused(tmp_path: Path) -> None:
    answer = ralm("recipe", "run", "replug/table-3", "--limit-tokens", 90, "--out", tmp_path)
    assert answer.status == 2
    assert "--limit-tokens has no effect" in answer.err or "reads questions" in answer.err
    answer = ralm("recipe", "run", "replug/table-3", "--use", "mmlu=a", "--out", tmp_path)
    assert "no resource 'mmlu' here" in answer.err
    twice = ["--use", "llama-13b=a", "--use", "llama-13b=b"]
    assert "names a resource twice" in ralm("recipe", "run", "replug/table-3", *twice, "--out", tmp_path).err


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not a folder of recipes, and is not empty"):
        RecipeFolder(tmp_path, {}, stand_in=False, options=CommandOptions()).check()


def test_the_nearest_names_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no resource 'gpt-2' here; did you mean gpt2"):
        check_replacements({"gpt-2": "x"}, ["gpt2", "wikipedia-2018"])
    answer = ralm("recipe", "run", "in-context-ralm/tabel-1", "--out", tmp_path)
    assert answer.status == 2
    assert "no recipe 'in-context-ralm/tabel-1'; did you mean in-context-ralm/table-1" in answer.err
    answer = ralm("recipe", "run", "in-context-ralm/table-1", "--only", "GPT-2 XXL", "--out", tmp_path)
    assert answer.status == 2
    assert "no model 'GPT-2 XXL' that can be run; did you mean GPT-2 XL" in answer.err
    answer = ralm("recipe", "run", "in-context-ralm/table-1", "--use", "gpt2", "--out", tmp_path)
    assert answer.status == 2
    assert "--use takes NAME=VALUE" in answer.err


def test_what_the_hub_does_not_give_can_be_given(tmp_path: Path) -> None:
    answer = ralm("recipe", "run", "in-context-ralm/figure-6", "--out", tmp_path / "out")
    assert answer.status == 1
    assert "cannot read the dataset Salesforce/wikitext:wikitext-103-v1:validation" in answer.err
    assert "From the hub it reads wikitext-103-dev, gpt2; give your own with --use wikitext-103-dev=PATH." in answer.err
    assert "Traceback" not in answer.err


def test_what_does_not_fit_is_refused_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three " * 300)
    run = ["recipe", "run", "in-context-ralm/figure-7", "--only", "GPT-2 XL", "--out", tmp_path / "out"]
    run += ["--use", f"wikitext-103-dev={text}"]
    monkeypatch.setattr("ralm.recipes.runner._memory", lambda: 10**9)
    monkeypatch.setattr("ralm.recipes.runner._has_gpu", lambda: False)
    answer = ralm(*run)
    assert answer.status == 2
    assert "needs about 6.2 GB of memory for its model, and this machine has 1.0 GB: run smaller models" in answer.err
    monkeypatch.setattr("ralm.recipes.runner.shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    answer = ralm(*run)
    assert answer.status == 1
    assert "of disk, and" in answer.err
    assert not (tmp_path / "out" / "steps").exists()


def test_a_dry_run_tells_steps_and_estimates_and_writes_nothing(tmp_path: Path) -> None:
    answer = ralm("recipe", "run", "in-context-ralm/figure-6", "--out", tmp_path / "out", "--dry-run", "--json")
    assert answer.status == 0, answer.err
    told = json.loads(answer.out)
    assert [step["command"].split()[1] for step in told["steps"][:3]] == ["eval", "index", "retrieve"]
    assert not any(step["done"] for step in told["steps"])
    assert told["steps"][1]["passages"] == 21_015_324
    assert told["hours"] > 0
    assert not (tmp_path / "out").exists()

"""A step is found again by everything that decides it; data sets become the files that commands read."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from ralm.errors import CorpusError
from ralm.lm.api.endpoint import ApiOptions
from ralm.lm.registry import ModelOptions
from ralm.recipes import catalogue
from ralm.recipes.catalogue import RecipeFolder, recipe_named
from ralm.recipes.inputs import plain_title, write_input, write_resource
from ralm.recipes.recipe import RESOURCES, Resource, Step
from tests.cli.program import failed, ralm

TEXT, CORPUS, TITLES = "wikitext-103-test", "wikipedia-2018", "wikitext-103-titles"
EVAL, INDEX = f"eval @{TEXT} --lm @gpt2", f"index @{CORPUS}"
Made = Callable[..., Step]


def step_of(text: str, place: RecipeFolder) -> Step:
    """The step of a command that names resources."""
    return place.step(text, {f"@{one}": RESOURCES[one] for one in RESOURCES if f"@{one}" in text.split()})


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A step, with what is given for resources, and options of the model."""

    def make(text: str, given: dict[str, str] | None = None, **model: Any) -> Step:
        return step_of(text, RecipeFolder(tmp_path / "out", given or {}, model=ModelOptions(**model)))

    return make


def test_what_decides_a_step_is_in_its_name(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "text.txt"
    file.write_text("one")
    given = {TEXT: str(file)}
    steps = [made(EVAL), made(EVAL, given)]
    file.write_text("two")
    steps.append(made(EVAL, given))
    steps.append(made(f"eval @{TEXT} --lm @gpt2-xl"))
    steps.append(made(f"{EVAL} --stride 8"))
    steps.append(made(EVAL, dtype="bfloat16"))
    assert len({*steps}) == len(steps)
    assert made(EVAL, given) == steps[2], "the same file has the same name"
    assert made(EVAL, ray="auto", device="cpu") == steps[0]
    monkeypatch.setattr(catalogue, "__version__", "0.0.1")
    assert made(EVAL) != steps[0], "results of another version are not taken"


@pytest.mark.parametrize(
    ("resource", "file", "text", "prefix"),
    [
        (CORPUS, "corpus.jsonl", INDEX, "file://"),
        ("gpt2", "model/config.json", EVAL, ""),
        (TEXT, "text.txt", f"{INDEX} --forbidden-titles @{TITLES}", ""),
    ],
    ids=["behind-a-url", "in-a-model", "that-titles-are-taken-from"],
)
def test_the_content_of_a_file_decides(
    made: Made, tmp_path: Path, resource: str, file: str, text: str, prefix: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"text": "one"}')
    given = {resource: prefix + str(path.parent if resource == "gpt2" else path)}
    first = made(text, given)
    assert first == made(text, given)
    assert first != made(text)
    path.write_text('{"text": "two"}')
    assert made(text, given) != first


def test_a_step_is_named_after_the_steps_that_it_reads(tmp_path: Path) -> None:
    """In its command, their results stand in quotes if they are values of keys; of vectors, the name alone."""
    place = RecipeFolder(tmp_path / "one,two")
    indexes = [step_of(text, place) for text in (INDEX, f"{INDEX} --analyser lucene")]
    first, second = (
        place.step("retrieve --index $one --retriever dense:vectors=%one,k=$one", {"$one": one, "%one": one})
        for one in indexes
    )
    assert first != second
    path = str(indexes[0].path)
    assert first.words[1:6] == (
        "retrieve",
        "--index",
        path,
        "--retriever",
        f'dense:vectors={indexes[0].path.name},k="{path}"',
    )
    assert first.words[-1].endswith(".json")
    assert {*first.needs} == {indexes[0]}


def test_options_go_to_the_commands_that_take_them(made: Made) -> None:
    assert made(EVAL, {"gpt2": "mine"}, dtype="bfloat16", device="cuda", ray="auto").words[3:7] == (
        *("--lm", "mine", "--lm-args", "dtype=bfloat16,device=cuda,ray=auto"),
    )
    for text in (f"index @{CORPUS} --tokens 128 --lm @gpt2", f"retrieve @{TEXT} --lm @gpt2"):
        assert "--lm-args" not in made(text, dtype="bfloat16").words
    training = made(f"train retriever @{CORPUS} --lm @gpt2", dtype="bfloat16", device="all", ray="auto").words
    assert training[training.index("--lm-args") + 1] == "dtype=bfloat16", "it runs where the training does"
    api = {"gpt2": "http://localhost:1/v1#gpt2"}
    assert made(EVAL, api, dtype="bfloat16", api=ApiOptions(top_logprobs=5)).words[5:7] == (
        "--lm-args",
        "top_logprobs=5",
    )
    assert "--lm-args" not in made(EVAL, api=ApiOptions(top_logprobs=5)).words
    first = made(EVAL, api)
    for options in (ApiOptions(top_logprobs=5), ApiOptions(tokenizer="gpt2"), ApiOptions(context_length=99)):
        assert made(EVAL, api, api=options) != first
    paid = made(EVAL, api, api=ApiOptions(requests_at_once=4, max_requests=2000, timeout=60, retries=9))
    assert paid == first, "a step that was paid for is found"
    assert "requests_at_once=4,timeout=60,retries=9,max_requests=2000" in paid.words


def test_files_are_written_before_what_reads_them(tmp_path: Path) -> None:
    [index] = {step for step in recipe_named("in-context-ralm/table-2").steps if step.words[1] == "index"}
    [titles] = index.needs
    assert titles.words[:4] == ("python", "-m", "ralm.recipes.inputs", TITLES)
    assert titles.words[5:] == tuple(str(text.path) for text in titles.needs)
    assert [text.words[3] for text in titles.needs] == [TEXT, "wikitext-103-dev"]
    mine = RecipeFolder(Path("OUT"), {TEXT: "mine.txt"})
    [index] = {step for step in recipe_named("in-context-ralm/table-2", mine).steps if step.words[1] == "index"}
    assert [text.words[3] for text in index.needs[0].needs] == ["wikitext-103-dev"]
    assert "mine.txt" in index.needs[0].words


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
        ("in-context-ralm/table-2", ["--stand-in", "--use", "llama-7b=./no"], 1, "the hub: llama-7b (./no). Give"),
        ("in-context-ralm/tabel-1", [], 2, "did you mean in-context-ralm/table-1"),
        (
            "in-context-ralm/figure-6",
            [],
            1,
            "hub: wikitext-103-dev (hf:Salesforce/wikitext:wikitext-103-v1:validation), gpt2 (gpt2), wikitext-103-t",
        ),
    ],
)
def test_what_cannot_run(tmp_path: Path, recipe: str, options: list[str], status: int, said: str) -> None:
    failed(ralm("recipe", "run", recipe, *options, "--out", tmp_path / "out"), status, said)
    assert not (tmp_path / "out").exists(), "nothing was begun"


ROWS = [
    "",
    " = Ise @-@ class battleship = \n",
    "",
    " The ship sailed .\n",
    " = = History = = \n",
    " = Robert <unk> = \n",
    " He .\n",
]


def saved(folder: Path, rows: dict[str, list[object]]) -> str:
    Dataset.from_dict(rows).save_to_disk(str(folder))
    return f"hf:{folder}"


def test_the_text_of_wikitext_is_that_of_the_official_code(tmp_path: Path) -> None:
    resource = replace(RESOURCES["wikitext-103-test"], source=saved(tmp_path / "set", {"text": [*ROWS]}))
    write_resource(resource, tmp_path / "text.txt")
    assert (tmp_path / "text.txt").read_text() == "".join(row if row else " \n" for row in ROWS)


def test_articles_of_wikitext(tmp_path: Path) -> None:
    resource = replace(RESOURCES["wikitext-103-train"], source=saved(tmp_path / "set", {"text": [*ROWS]}))
    write_resource(resource, tmp_path / "articles.jsonl")
    articles = [json.loads(line) for line in (tmp_path / "articles.jsonl").read_text().splitlines()]
    assert articles == [
        {"title": "Ise @-@ class battleship", "text": " The ship sailed .\n = = History = = \n"},
        {"title": "Robert <unk>", "text": " He .\n"},
    ]


def test_documents_of_one_kind_are_chosen(tmp_path: Path) -> None:
    meta = [{"pile_set_name": name} for name in ("ArXiv", "Github", "ArXiv", "ArXiv")]
    source = saved(tmp_path / "set", {"text": ["one", "two", "three", "four"], "meta": [*meta]})
    text = Resource(
        name="a", kind="text", source=source, form="joined", only=("meta.pile_set_name", "ArXiv"), max_rows=2
    )
    write_resource(text, tmp_path / "text.txt")
    assert (tmp_path / "text.txt").read_text() == "one\n\nthree"
    write_resource(replace(text, form="lines", max_rows=None), tmp_path / "lines.jsonl")
    lines = (tmp_path / "lines.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["one", "three", "four"]
    with pytest.raises(CorpusError, match="has nothing for a"):
        write_resource(replace(text, only=("meta.pile_set_name", "FreeLaw")), tmp_path / "none.txt")
    assert not (tmp_path / "none.txt").exists()


@pytest.mark.parametrize(
    ("title", "plain"),
    [
        ("Ise @-@ class battleship", "Ise-class battleship"),
        ("Gold dollar", "Gold dollar"),
        ("You 're Gonna Live Forever in Me", "You're Gonna Live Forever in Me"),
        ("SMS Zrínyi ( 1910 )", "SMS Zrínyi (1910)"),
        ("Dota 2 : The 1 @,@ 000 's", "Dota 2: The 1,000's"),
    ],
)
def test_titles_are_as_wikipedia_has_them(title: str, plain: str) -> None:
    assert plain_title(title) == plain


def test_titles_are_those_of_all_texts(tmp_path: Path) -> None:
    texts = [tmp_path / "test", tmp_path / "dev"]
    texts[0].write_text(" = One @-@ two = \n text\n = = Part = = \n")
    texts[1].write_text(" = Three = \n")
    write_input("wikitext-103-titles", tmp_path / "new" / "titles.txt", texts)
    assert (tmp_path / "new" / "titles.txt").read_text().splitlines() == ["One @-@ two", "One-two", "Three"]

"""Data sets become the files that commands read."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from datasets import Dataset

from ralm.errors import CorpusError
from ralm.recipes.inputs import plain_title, write_input, write_resource
from ralm.recipes.recipe import RESOURCES, Resource

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

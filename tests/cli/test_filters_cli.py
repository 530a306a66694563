"""`--where` and `--expand` on the command line, and what they say of wrong input."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import done, failed, printed, ralm, write_rows

LETTERS = "abcdefghijkl"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six documents of four passages each, of even and odd years, two of them without a language."""
    folder = tmp_path_factory.mktemp("filters")
    rows: list[dict[str, Any]] = [
        {
            "id": f"d{number}",
            "title": f"Story {number % 2}",
            "text": " ".join(f"fox{number} {letter}{letter}{number} hen" for letter in LETTERS[:4]),
            "year": 2019 + number % 3,
            **({"lang": "en" if number % 2 else "de", "tags": ["x", f"t{number}"]} if number > 1 else {}),
        }
        for number in range(6)
    ]
    done("index", write_rows(folder / "x.jsonl", rows), "--out", folder / "index", "--words", 3)
    return folder / "index"


def found(index: Path, *more: object) -> set[str]:
    return {hit["document_id"] for hit in printed("search", index, "hen", "-k", 100, *more)["hits"]}


def test_hits_pass_the_filter(index: Path) -> None:
    assert found(index, "--where", "year >= 2020 and lang in ('en', 'de')") == {"d2", "d4", "d5"}
    assert found(index, "--where", "lang is None or 't5' in tags") == {"d0", "d1", "d5"}
    assert found(index, "--where", "id == 'd3' or title.endswith(' 0')", "--path", "d[0-3]") == {"d0", "d2", "d3"}
    assert found(index, "--where", "'t' in tags or 'n' in lang") == {"d3", "d5"}, "a whole item, or a part of a text"
    assert found(index, "--where", "year == 2020", "--distinct", "document") == {"d1", "d4"}
    assert found(index, "--where", "year == 2020", "--retriever", "random") == {"d1", "d4"}
    nothing = ralm("search", index, "hen", "--where", "year == 1999")
    assert "no passage was found" in nothing.err


def test_hits_are_read_with_their_neighbours(index: Path) -> None:
    [hit] = printed("search", index, "bb2", "--expand", 1)["hits"]
    assert hit["text"] == "fox2 aa2 hen fox2 bb2 hen fox2 cc2 hen"
    assert (hit["document_id"], hit["passage"]) == ("d2", 9)
    [hit] = printed("search", index, "aa2", "--expand", 2)["hits"]
    assert hit["text"].split()[1::3] == ["aa2", "bb2", "cc2"], "nothing of the document before"
    [hit] = printed("search", index, "dd5", "--expand", "document")["hits"]
    assert hit["text"].split()[1::3] == ["aa5", "bb5", "cc5", "dd5"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--where", "yaer == 2020"], "has the key 'yaer'; the keys are lang, tags, year, id, title."),
        (["--where", "year == 'y2020'"], "holds numbers, which cannot be compared with 'y2020'."),
        (["--where", "lang < 3"], "holds text, which cannot be compared with 3; put it in quotes"),
        (["--where", "year >= "], "the filter cannot be read (invalid syntax): "),
        (["--expand", "0"], "--expand must be a number of neighbours from 1 on, or document, not '0'."),
        (["-k", "0"], "-k must be at least 1"),
    ],
)
def test_wrong_input_is_one_sentence(index: Path, flags: list[str], message: str) -> None:
    failed(ralm("search", index, "hen", *flags), 2, message)

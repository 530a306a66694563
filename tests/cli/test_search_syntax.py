"""`ralm search` with phrases, titles, prefixes and typing errors."""

from pathlib import Path

import pytest

from tests.cli.program import done, failed, printed, ralm


def found(*arguments: object) -> set[str]:
    return {hit["document_id"] for hit in printed("search", *arguments)["hits"]}


def test_syntax_is_read_only_if_asked_for(work: Path) -> None:
    index = work / "index"
    assert found(index, '"ships cross the sea"', "--syntax") == {"sea"}
    assert found(index, '"cross ships"', "--syntax") == set()
    assert found(index, '"cross ships"') == {"sea"}
    assert found(index, "title:hill sea", "--syntax") == {"hill"}
    assert found(index, "whal*", "--syntax") == {"sea"}
    assert found(index, "whal*") == set()


def test_it_goes_with_other_options(work: Path) -> None:
    index = work / "index"
    assert found(index, "sh*", "--syntax") == {"sea", "hill"}
    assert found(index, "sh*", "--syntax", "--path", "h*") == {"hill"}
    hits = printed("search", index, "hill*", "--syntax", "--distinct", "document")["hits"]
    assert len(hits) == len({hit["document_id"] for hit in hits}) == 2
    [hit] = printed("search", index, "wha*", "--syntax", "-k", 1)["hits"]
    assert [hit["text"][slice(*mark)] for mark in hit["marks"]] == ["whales"]


@pytest.mark.parametrize("syntax", [[], ["--syntax"]])
def test_what_replaced_a_word_is_said(work: Path, syntax: list[str]) -> None:
    answer = done("search", work / "index", "whaels xyzzyx", "--fuzzy", "--json", *syntax)
    assert '"document_id": "sea"' in answer.out
    assert "ralm: whael is not in the index; searching for whale\n" in answer.err
    assert "ralm: xyzzyx is not in the index, and no word is like it\n" in answer.err


def test_what_cannot_be_searched(work: Path) -> None:
    search = ["search", work / "index"]
    failed(
        ralm(*search, 'the "sea', "--syntax"), 2, "the quote before 'sea' has no end. Without --syntax, text is plain."
    )
    failed(ralm(*search, "sea", "--fuzzy", "--retriever", "random"), 2, "has no effect without --retriever bm25.")
    failed(ralm(*search, "sea", "--fuzzy", "--cache", work / "cache"), 2, "--cache keeps hits of plain queries alone")
    assert "no passage has all" in ralm(*search, "title:sea title:hill", "--syntax").err

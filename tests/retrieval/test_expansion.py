"""Hits with their neighbours: the text of the document, once, and nothing that may not be read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ralm.corpus.splitting import Splitting, make_passages
from ralm.reading.sources import FromRetriever
from ralm.records import Document, Passage
from ralm.retrieval.build import build_index
from ralm.retrieval.expansion import ExpandedPassages
from ralm.retrieval.index import open_index
from ralm.retrieval.retriever import RetrieverOptions

ENGLISH = " ".join(f"Sentence {number} has its number at the end, which is {number}." for number in range(3000))
CHINESE = "".join(f"\u4ed6\u5011\u8ce6\u6709\u7406\u6027{number}\u548c\u826f\u5fc3\u3002" for number in range(200))


@pytest.mark.parametrize("text", [ENGLISH, CHINESE])
@pytest.mark.parametrize("split", ["words", "sentences", "structure"])
def test_a_whole_document_is_its_text(text: str, split: Any) -> None:
    """Also with thousands of passages, which repeat words of the one before."""
    splitting = Splitting(split=split, words=17, overlap_words=0 if split == "words" else 11)
    passages = [*make_passages([Document("a", "", "other"), Document("b", "", text)], splitting)]
    recorded = {"split": split, "overlap_words": splitting.overlap_words} if split != "words" else {}
    whole = ExpandedPassages(passages, "document", recorded)[len(passages) // 2]
    assert "".join(whole.text.split()) == "".join(text.split())
    assert ExpandedPassages(passages, "document", recorded)[0].text == "other"


def test_neighbours_end_at_a_passage_that_may_not_be_read() -> None:
    passages = [Passage(number, "d", "", f"text{number}") for number in range(7)]
    mask_N = np.array([True, True, False, True, True, True, True])
    assert ExpandedPassages(passages, "document", None, mask_N)[4].text == "text3 text4 text5 text6"
    assert ExpandedPassages(passages, "1", None, mask_N)[3].text == "text3 text4"


def test_neighbours_pass_the_filter_too(tmp_path: Path) -> None:
    """The pages of a file are one document."""
    pages = [Passage(page, "d", "", f"text{page}", metadata={"page": page}) for page in range(1, 5)]
    build_index([Passage(0, "c", "", "zero"), *pages], tmp_path / "index")
    options = RetrieverOptions(where="page >= 2", expand="document")
    source = FromRetriever.of_index(open_index(tmp_path / "index"), options)
    assert [source.passages[number].text for number, _ in source.search(["text3"], 1).of(0)] == ["text2 text3 text4"]

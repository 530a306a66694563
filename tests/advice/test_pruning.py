"""Documents to leave out: copies, text in no order, those that gain less than others; and the file of their ids."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ralm.advice.held_out import WorthOptions
from ralm.advice.measure import FIRST, MeasuredUnit
from ralm.advice.pruning import PrunedDocument, Pruning, repeated_documents, unlikely_documents, weak_documents
from ralm.advice.verdict import open_meter
from ralm.corpus.splitting import make_passages
from ralm.demo.documentation import standard_library_documentation
from ralm.errors import UsageError
from ralm.lm.registry import load_language_model
from ralm.records import Document, Passage
from ralm.retrieval.build import build_index
from ralm.retrieval.index import open_index
from ralm.training.gains import HeldOutGain
from tests.cli.program import done, failed, printed, ralm, write_rows


def words(seed: int, count: int = 60) -> list[str]:
    return [f"word{number}" for number in np.random.default_rng(seed).integers(1000, size=count)]


def passages(*texts: Sequence[str]) -> list[Passage]:
    return [Passage(number, f"d{number}", "", " ".join(text)) for number, text in enumerate(texts)]


def test_copies_repeat_the_first_document_with_their_text() -> None:
    first, other = words(1), words(2)
    changed = [*first[:55], *words(3, 5)]  # 43 of 48 runs are the first's
    found = repeated_documents(passages(first, other, first, changed, [*first[:30], *other[:30]], ["short"], ["short"]))
    assert found == {"d2": "d0", "d3": "d0", "d6": "d5"}


def test_a_document_does_not_repeat_itself() -> None:
    two = [Passage(number, "d", "", " ".join(words(1))) for number in range(2)]
    assert repeated_documents(two) == {}


def units(gains: Sequence[Sequence[float]], tokens: int = 4) -> list[MeasuredUnit]:
    """Units whose strides each have another document first, with this gain over the next."""
    return [
        MeasuredUnit(
            str(place), {}, {FIRST: (0.0, tokens * len(row))}, {}, [], [(f"d{n}", gain) for n, gain in enumerate(row)]
        )
        for place, row in enumerate(gains)
    ]


def test_documents_that_surely_gain_less_are_weak() -> None:
    draws = np.random.default_rng(0)
    own = np.array([1.0, 1.1, 0.9, -2.0, 1.0, 1.2])
    found = weak_documents(units([(own + draws.normal(scale=0.5, size=6)).tolist() for _ in range(40)]))
    assert [*found] == ["d3"]
    assert found["d3"] == pytest.approx(-2.0 / 4, abs=0.1)
    assert weak_documents(units([[]])) == {}


def test_documents_that_only_chance_tells_apart_are_not_weak() -> None:
    draws = np.random.default_rng(1)
    found = [weak_documents(units(draws.normal(size=(6, 8)).tolist())) for _ in range(20)]
    assert sum(map(len, found)) <= 8  # of 160


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 documents, a copy of one, and four of their words in no order."""
    documents = [one for one in standard_library_documentation() if len(one.text.split()) > 150][:40]
    every = [word for one in documents for word in one.text.split()]
    draws = np.random.default_rng(0)
    noise = [" ".join(every[place] for place in draws.integers(len(every), size=120)) for _ in range(4)]
    texts = {**{one.id: one.text for one in documents}, "copy": documents[0].text}
    texts |= {f"noise{number}": text for number, text in enumerate(noise)}
    file = tmp_path_factory.mktemp("pruned") / "corpus.jsonl"
    return write_rows(file, [{"id": name, "text": text} for name, text in texts.items()])


def test_words_in_no_order_are_unlikely(corpus: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in corpus.read_text().splitlines()]
    build_index(make_passages(Document(row["id"], "", row["text"]) for row in rows), tmp_path / "index")
    meter = open_meter(open_index(tmp_path / "index"), load_language_model("ralm-tiny"), WorthOptions())
    found = unlikely_documents(meter, 0)
    assert {f"noise{number}" for number in range(4)} <= found
    assert len(found) <= 6


def test_the_program_writes_the_ids_to_leave_out_and_checks_them(corpus: Path, tmp_path: Path) -> None:
    asked = ("--lm", "ralm-tiny", "--units", 32, "--strides", 2, "--candidates", 2, "--ensemble", 2, "--budget", 0)
    shown = printed("worth", corpus, *asked, "--prune", tmp_path / "ids.txt")["pruning"]
    ids = (tmp_path / "ids.txt").read_text().splitlines()
    assert ids == [one["document_id"] for one in shown["pruned"]]
    assert {"copy", "noise0", "noise1", "noise2", "noise3"} <= {*ids}
    assert [one["repeats"] for one in shown["pruned"] if one["document_id"] == "copy"] == [ids_of(corpus)[0]]
    assert (shown["documents"], shown["chosen_on"], shown["checked_on"]) == (45, 16, 16)
    assert shown["gain"]["low"] <= shown["gain"]["gain"] <= shown["gain"]["high"]
    assert shown["sentence"].startswith("Leaving out 1 that repeat another one and ")
    failed(ralm("worth", corpus, *asked, "--prune", tmp_path / "ids.txt"), 1, "ids.txt already exists")
    done("index", corpus, "--out", tmp_path / "index")
    query = " ".join(json.loads(corpus.read_text().splitlines()[-1])["text"].split()[:20])
    without = printed("search", tmp_path / "index", query, "--forbidden-documents", tmp_path / "ids.txt")
    assert not {hit["document_id"] for hit in without["hits"]} & {*ids}


def ids_of(corpus: Path) -> list[str]:
    return [json.loads(line)["id"] for line in corpus.read_text().splitlines()]


def test_an_id_of_two_lines_cannot_be_written(tmp_path: Path) -> None:
    gain = HeldOutGain(gain=0.0, low=0.0, high=0.0)
    two_lines = PrunedDocument(document_id="a\nb", reason="unlikely text")
    found = Pruning(
        pruned=[two_lines], documents=2, never_found=0, noun="documents", chosen_on=8, checked_on=8, gain=gain
    )
    with pytest.raises(UsageError, match="cannot be a line of"):
        found.write_ids(tmp_path / "ids.txt")
    assert not (tmp_path / "ids.txt").exists()

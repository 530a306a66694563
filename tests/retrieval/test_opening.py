"""Retrievers and sources opened by name and options, without a command line."""

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ralm
from ralm.errors import UsageError
from ralm.protocols import Retriever
from ralm.reading.sources import FromRetriever
from ralm.retrieval.retriever import RetrieverName, matching_passages
from tests.fakes import CountingModel, LetterEncoder, WordTokenizer, passages_of

TEXTS = ("sheep on the hill", "the sea and the sheep", "a town by the sea", "the hill above the town")
QUERIES = ["sheep on the sea", "hill"]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("opening") / "index"
    ralm.build_index(passages_of(*TEXTS), folder, encoder=LetterEncoder())
    return folder


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder that the index names is no model that can be loaded."""
    monkeypatch.setattr("ralm.retrieval.index.load_encoder", lambda _: LetterEncoder())
    monkeypatch.setattr("ralm.retrieval.index.Index.encoder_options", lambda *_: None)


BY_HAND: dict[RetrieverName, Callable[[ralm.Index, list[int]], Retriever]] = {
    "bm25": lambda index, excluded: index.bm25.without(excluded),
    "dense": lambda index, excluded: index.dense().without(excluded),
    "hybrid": lambda index, excluded: ralm.Hybrid(index.bm25.without(excluded), index.dense().without(excluded)),
    "random": lambda index, excluded: ralm.RandomRetriever(len(index.passages), 7).without(excluded),
}


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("forbids", [False, True])
def test_by_options_as_by_hand(
    index: Path,
    tmp_path: Path,
    letters: None,
    caplog: pytest.LogCaptureFixture,
    name: RetrieverName,
    forbids: bool,
) -> None:
    caplog.set_level(logging.INFO, "ralm")
    opened = ralm.open_index(index)
    documents = tmp_path / "documents.txt"
    documents.write_text("\n".join([opened.passages[1].document_id, opened.passages[3].document_id]))
    excluded = matching_passages(opened.passages, document_ids=documents.read_text().splitlines()).tolist() if forbids else []
    assert bool(excluded) == forbids
    options = ralm.RetrieverOptions(retriever=name, seed=7, forbidden_documents=documents if forbids else None)
    retriever, by_hand = ralm.open_retriever(str(index), options), BY_HAND[name](opened, excluded)
    if name == "random" and not forbids:
        by_hand = ralm.RandomRetriever(len(opened.passages), 7)
    assert retriever.config == by_hand.config
    found, expected = retriever.retrieve(QUERIES, 4), by_hand.retrieve(QUERIES, 4)
    assert [found.of(row) for row in (0, 1)] == [expected.of(row) for row in (0, 1)]
    said = [record.getMessage() for record in caplog.records if record.name.startswith("ralm.retrieval")]
    assert said == ([f"{len(excluded)} of 4 passages are forbidden"] if forbids else [])


def test_a_source_that_an_evaluation_takes(index: Path, tmp_path: Path) -> None:
    """Opened by path, by an open index, and through a cache: the same figures and the same configuration."""
    model = CountingModel(WordTokenizer(), max_length=12)
    plan = ralm.PlanOptions(stride=2, query_tokens=3, document_tokens=4, max_length=12)
    cached = ralm.RetrieverOptions(cache=tmp_path / "cache")
    sources = [ralm.open_source(index), ralm.open_source(ralm.open_index(index)), ralm.open_source(index, None, cached)]
    text = "the sheep on the hill and the sea and the town"
    measures = [ralm.evaluate_text(text, model, plan, source=source).reading.measures for source in sources]
    assert measures[0] == measures[1] == measures[2]
    assert sources[0].config == sources[1].config == sources[2].config
    assert sources[0].config["retriever"] == "bm25"
    assert isinstance(sources[2], FromRetriever)
    assert isinstance(sources[2].retriever, ralm.CachedRetriever)
    assert sources[2].retriever.asked > 0


def test_no_source_and_two(index: Path) -> None:
    for indexed, retrieved in ((None, None), (index, index)):
        with pytest.raises(UsageError, match="`index` or from `retrieved`: give one of them"):
            ralm.open_source(indexed, retrieved)


def test_options_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="`retriever` must be one of bm25, dense, hybrid, random, not 'bm52'"):
        ralm.RetrieverOptions(retriever="bm52")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="`seed` must be at least 0, not -1"):
        ralm.RetrieverOptions(seed=-1)


def test_no_command_line_is_imported(index: Path) -> None:
    script = f"import ralm, sys; ralm.open_source({str(index)!r}); print('ralm.cli' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")

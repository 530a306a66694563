"""Public bug reports of people who do this job, a line each, as far as no other test has them.

Others stand where they are decided: `reading/test_generate.py`, `reading/test_readers.py`, `lm/test_decoder.py`,
`retrieval/test_bm25.py`, `corpus/test_odd_files.py`, `reading/test_plan.py`, `harness/test_harness_model.py`,
`answering/test_citations.py` and `serving/test_defaults_of_clients.py`.
"""

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ralm
from ralm.corpus.folder import FileSelection
from ralm.errors import UsageError
from ralm.evaluation.perplexity import Measures
from ralm.retrieval.allowed import Distinct
from ralm.retrieval.dense.encoder import SentenceEncoder
from tests.fakes import CountingModel, LetterEncoder, WordTokenizer, passages_of
from tests.serving.served import DOCUMENTS, save_index

RANDOM = ralm.RandomRetriever(3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of documents with the ids a and b, and a set in BEIR's format whose ids are numbers."""
    folder = tmp_path_factory.mktemp("reports")
    save_index(
        folder / "index", [ralm.Document(name, "", one.text) for name, one in zip("ab", DOCUMENTS, strict=False)]
    )
    (folder / "queries.jsonl").write_text('{"_id": 7, "text": "sea"}\n')
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n7\t07\t1\n")
    return folder


def hits_of_the_same_document() -> float:
    """The nDCG of a run in which two passages of a relevant document are found."""
    hits = ralm.Hits.from_pairs([[(0, 2.0), (1, 1.0)]])
    passages = [ralm.Passage(number, "d", "", "text") for number in range(2)]

    found: Any = SimpleNamespace(config={}, retrieve=lambda _queries, _k: hits)
    run = ralm.retrieve_run(found, passages, {"a": "x"}, 5)
    return float(ralm.judge_run(run, {"a": {"d": 1}}, "nDCG@10").values["nDCG@10"][0])


def opened(folder: Path) -> Any:
    return ralm.open_retriever(ralm.open_index(folder / "index"))


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (lambda folder: opened(folder).retrieve(["sea"], 10**6).numbers_QK.shape[1], 2),
        (lambda _: RANDOM.retrieve(["sea"], 10**6).numbers_QK.shape, (1, 3)),
        (lambda _: ralm.Hybrid(RANDOM, RANDOM).retrieve(["sea"], 10**6).numbers_QK.shape, (1, 6)),
        (lambda folder: ralm.read_topics(folder / "queries.jsonl"), {"7": "sea"}),
        (lambda folder: ralm.read_qrels(folder / "qrels.tsv"), {"7": {"07": 1}}),
        (lambda _: hits_of_the_same_document(), 1.0),
        (lambda _: Measures(tokens=9, words=1, bytes=9, nll=710.0).word_perplexity, math.inf),
    ],
)
def test_reports_that_passed(folder: Path, report: Callable[[Path], Any], expected: Any) -> None:
    assert report(folder) == expected


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("remove", lambda index: ralm.update_index(index, remove="ab")),
        ("remove", lambda index: ralm.sync_index(index, ralm.make_passages, remove="ab")),
        ("sources", lambda index: ralm.sync_index(index, ralm.make_passages, sources="ab")),
        ("queries", lambda index: opened(index.parent).retrieve("sea", 2)),
        ("queries", lambda index: ralm.FromRetriever.of_index(index).search("sea", 2)),
        ("queries", lambda _: RANDOM.retrieve("sea", 2)),
        ("queries", lambda _: ralm.Hybrid(RANDOM, RANDOM).retrieve("sea", 2)),
        ("queries", lambda _: Distinct(RANDOM, passages_of("a"), "text").retrieve("sea", 2)),
        ("queries", lambda _: SentenceEncoder.encode_queries(LetterEncoder(), "sea")),  # type: ignore[arg-type]
        ("prompts", lambda _: ralm.generate_many("sea", CountingModel(WordTokenizer()))),
        ("questions", lambda _: [*ralm.Answerer.answers(None, "sea")]),  # type: ignore[arg-type]
        ("paths", lambda index: ralm.compare_runs(str(index))),
        ("stop", lambda _: ralm.GenerationOptions(stop="ab")),  # type: ignore[arg-type]
        ("stop", lambda _: ralm.AnswerOptions(stop="ab")),  # type: ignore[arg-type]
        ("include", lambda _: FileSelection(include="*.md")),  # type: ignore[arg-type]
        ("exclude", lambda _: FileSelection(exclude="*.md")),  # type: ignore[arg-type]
        ("read_as", lambda _: FileSelection(read_as="*.md=text")),  # type: ignore[arg-type]
        ("choices", lambda _: ralm.ChoiceQuestion("1", "Which?", "ab", 0)),  # type: ignore[arg-type]
        ("choices", lambda _: ralm.Question("1", "Which?", choices="ab")),  # type: ignore[arg-type]
        ("answers", lambda _: ralm.Question("1", "Who?", "ab")),  # type: ignore[arg-type]
    ],
)
def test_a_string_is_no_list_of_strings(folder: Path, name: str, call: Callable[[Path], Any]) -> None:
    with pytest.raises(
        UsageError, match=f"^`{name}` must be a list of strings, not the string '.*': put it into a list"
    ):
        call(folder / "index")
    assert [document for document, _ in ralm.open_index(folder / "index").passages.documents()] == ["a", "b"]

"""Runs of one's own parts, started and resumed by the library."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import JsonValue

import ralm
from ralm.errors import FolderExistsError, UsageError
from ralm.reading.parts import Parts
from ralm.records import FloatArray
from ralm.runs.resume import unfinished_run
from tests.fakes import SharedWordsRetriever, passages_of
from tests.lm.test_own_model import Bigrams

PASSAGES = passages_of("a b c a b c", "c d e c d e", "a d a d")
TEXT = "a b c d e a b c d a d a b c " * 3
PLAN = ralm.PlanOptions(stride=4, query_tokens=4, document_tokens=12, max_length=40)


class Stopped(Bigrams):
    """A model that only scores, and is stopped after some passes."""

    def __init__(self, passes: int = 10**9, **config: Any) -> None:
        self.config = {**Bigrams.config, **config}
        self.left = passes
        self.read = 0

    def score(self, passes: Sequence[ralm.ScoringSequence]) -> Iterator[FloatArray]:
        for one in passes:
            if self.read == self.left:
                raise KeyboardInterrupt
            self.read += 1
            yield from super().score([one])


class Longest:
    candidates = 3
    config: Any = {"reranker": "longest"}  # noqa: RUF012

    def choose(self, rows: ralm.Rows, hits: ralm.Hits, passages: Sequence[ralm.Passage], k: int) -> ralm.Hits:
        rows_ = [sorted(hits.of(row), key=lambda hit: -len(passages[hit[0]].text)) for row in range(len(rows))]
        return ralm.Hits.from_pairs([row[:k] for row in rows_])


def source() -> ralm.FromRetriever:
    return ralm.FromRetriever(SharedWordsRetriever(PASSAGES), PASSAGES, config={"retriever": "words"})


def start(out: Path, model: Stopped, text: str = TEXT, **changed: Any) -> ralm.Evaluation:
    options: dict[str, Any] = {"source": source(), "parts": Parts(reranker=Longest()), "baseline": True}
    return ralm.run_evaluation(out, text, model, PLAN, **options | changed)


def test_a_run_that_was_stopped_is_resumed(tmp_path: Path) -> None:
    whole = Stopped()
    expected = start(tmp_path / "whole", whole)
    first, second = Stopped(passes=10), Stopped()
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", first)
    resumed = start(tmp_path / "run", second)
    assert 0 < second.read <= whole.read - 10, "what was scored is not scored again"
    np.testing.assert_array_equal(resumed.reading.scored.log_probs_T, expected.reading.scored.log_probs_T)
    assert resumed.baseline is not None
    assert (tmp_path / "run" / "tokens.parquet").exists()


def test_a_run_is_resumed_whatever_stands_beyond_its_limit(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", Stopped(passes=10), limit_tokens=64)
    with pytest.raises(UsageError, match=r"text\.sha256"):
        start(tmp_path / "run", Stopped(), "z" + TEXT[1:], limit_tokens=64)
    resumed = start(tmp_path / "run", Stopped(), TEXT + "and more", limit_tokens=64)
    assert resumed.prepared.text == TEXT[:64]
    assert not (tmp_path / "run.unfinished").exists()
    with pytest.raises(FolderExistsError):
        start(tmp_path / "run", Stopped())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (ralm.Parts(), r"begun with other settings \(reranker"),
        (ralm.Parts(reader=ralm.Concatenation(documents=2), reranker=Longest()), r"begun with other settings \(reader"),
    ],
)
def test_a_run_of_other_parts_is_not_resumed(changed: ralm.Parts, message: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", Stopped(passes=5))
    with pytest.raises(UsageError, match=message):
        start(tmp_path / "run", Stopped(), parts=changed)
    with pytest.raises(UsageError, match=r"begun with other settings \(model"):
        start(tmp_path / "run", Stopped(smoothing=1))


def test_parts_that_do_not_say_what_decides_their_results(tmp_path: Path) -> None:
    unsaid = Longest()
    unsaid.config = None
    with pytest.raises(UsageError, match="the reranker Longest does not say what decides its results; give it a `conf"):
        start(tmp_path / "run", Stopped(), parts=Parts(reranker=unsaid))
    with pytest.raises(UsageError, match="the `config` of the language model Stopped cannot be written as JSON"):
        start(tmp_path / "run", Stopped(weights=np.zeros(1)))
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_of_own_parts_is_resumed(tmp_path: Path) -> None:
    points = {
        name: ralm.ReadingSettings(plan=PLAN, source=source(), parts=Parts(reader=ralm.InContext(), reranker=reranker))
        for name, reranker in {"first": None, "longest": Longest()}.items()
    }
    expected = ralm.sweep(TEXT, whole := Stopped(), "reranker", points, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        ralm.sweep(TEXT, Stopped(passes=8), "reranker", points, out=tmp_path / "sweep")
    swept = ralm.sweep(TEXT, second := Stopped(), "reranker", points, out=tmp_path / "sweep")
    assert 0 < second.read <= whole.read - 8
    assert swept.rows() == expected.rows()
    written = [tmp_path / "sweep" / f"reranker-{value}" for value in points]
    assert ralm.compare_runs(written).estimates(1) == swept.comparison.estimates(1)


def test_a_folder_of_somebody_else_is_kept(tmp_path: Path) -> None:
    theirs = tmp_path / "run.unfinished"
    theirs.mkdir()
    for name in ("config.json", "thesis.txt"):
        (theirs / name).write_text("years of work")
    for force in (False, True):
        with (
            pytest.raises(UsageError, match=r"run\.unfinished is in the way of .*run, and ralm did not"),
            unfinished_run(tmp_path / "run", {"a": 1}, force=force),
        ):
            pass
    assert sorted(path.name for path in theirs.iterdir()) == ["config.json", "thesis.txt"]


def test_another_process_is_refused(tmp_path: Path) -> None:
    with (
        unfinished_run(tmp_path / "run", {"a": 1}, force=False),
        pytest.raises(FolderExistsError, match="another process is writing .*run; wait for it"),
        unfinished_run(tmp_path / "run", {"a": 1}, force=True),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": {"name": "lm", "weights": "x"}}, r"model\.weights w there, x here"),
        ({"model": {"name": "lm"}}, r"model\.weights w there, None here"),
        ({"k1": 0.9}, r"k1 None there, 0\.9 here"),
    ],
)
def test_a_run_begun_with_other_settings_says_which(tmp_path: Path, changed: dict[str, JsonValue], said: str) -> None:
    config: dict[str, JsonValue] = {"model": {"name": "lm", "weights": "w"}}
    with pytest.raises(KeyboardInterrupt), unfinished_run(tmp_path / "run", config, force=False) as folder:
        (folder / "model-0.sqlite").write_text("scored")
        raise KeyboardInterrupt
    other = {**config, **changed}
    with pytest.raises(UsageError, match=said), unfinished_run(tmp_path / "run", other, force=False):
        pass
    with unfinished_run(tmp_path / "run", config, force=False) as folder:
        assert (folder / "model-0.sqlite").read_text() == "scored"

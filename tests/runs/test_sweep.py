"""Sweeps: every point is an evaluation of its own, and what points share is done once."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ralm.errors import UsageError
from ralm.evaluation.perplexity import ReadingSettings, evaluate_text
from ralm.lm.scoring import Scorer
from ralm.protocols import Reader, Retriever
from ralm.reading.mixture import UniformWeights
from ralm.reading.parts import Parts
from ralm.reading.plan import PlanOptions
from ralm.reading.readers import Concatenation, Ensemble, InContext
from ralm.reading.sources import FromRetriever
from ralm.reranking.oracle import Oracle
from ralm.reranking.zero_shot import ZeroShot
from ralm.retrieval.allowed import mask_without
from ralm.retrieval.build import build_index
from ralm.retrieval.dense.options import DenseSearchOptions, VectorOptions
from ralm.retrieval.hybrid import FusionOptions, Hybrid
from ralm.retrieval.index import open_index
from ralm.retrieval.random import RandomRetriever
from ralm.runs.resume import sweep
from ralm.runs.sweep import Sweep, draw_lines
from tests.fakes import CountingModel, LetterEncoder, SharedWordsRetriever, WordTokenizer, passages_of

TEXT = "a b c d e a b c d e f g h a b c d e f g"
PLAN = PlanOptions(stride=3, query_tokens=2, document_tokens=2, max_length=10)
PASSAGES = passages_of("c d", "e f", "g h", "zz", "a b", "b c")
WORDS = FromRetriever(SharedWordsRetriever(PASSAGES), PASSAGES, config={})
RANDOM = FromRetriever(RandomRetriever(len(PASSAGES), seed=1), PASSAGES, config={})


def point(
    value: object, reader: Reader, plan: PlanOptions = PLAN, source: FromRetriever = WORDS, **more: Any
) -> tuple[str, ReadingSettings]:
    return str(value), ReadingSettings(plan=plan, parts=Parts(reader=reader, **more), source=source)


def swept(*points: tuple[str, ReadingSettings], scorer: Scorer | None = None) -> Sweep:
    return sweep(TEXT, scorer or CountingModel(WordTokenizer()), "option", dict(points))


def scored(*points: tuple[str, ReadingSettings]) -> int:
    """How many requests a sweep scores."""
    scorer = Scorer.of(CountingModel(WordTokenizer()))
    swept(*points, scorer=scorer)
    return scorer.scored


ENSEMBLES = [point(k, Ensemble(documents=k), source=RANDOM, mixer=UniformWeights()) for k in (1, 2, 4)]


@pytest.mark.parametrize(
    "points",
    [
        ENSEMBLES,
        [point(k, Concatenation(documents=k)) for k in (3, 1)],
        [point(stride, InContext(), replace(PLAN, stride=stride)) for stride in (1, 3, 5)],
        [point(tokens, InContext(), replace(PLAN, query_tokens=tokens)) for tokens in (1, 4)],
        [point(name, Ensemble(documents=2), source=of) for name, of in (("words", WORDS), ("random", RANDOM))],
        [point(one, InContext(), reranker=one) for one in (Oracle(candidates=3), ZeroShot(candidates=3, tokens=1))],
        [point(k, Ensemble(documents=k), reranker=ZeroShot(candidates=3, tokens=1)) for k in (1, 3)],
    ],
)
def test_every_point_is_what_an_evaluation_gives_for_it(points: list[tuple[str, ReadingSettings]]) -> None:
    made = swept(*points)
    assert list(made.evaluations) == [value for value, _ in points]
    for (value, one), row in zip(points, made.rows(), strict=True):
        alone = evaluate_text(
            TEXT, CountingModel(WordTokenizer()), one.plan, source=one.source, parts=one.parts, baseline=True
        )
        assert alone.baseline is not None
        found = made.evaluations[value]
        np.testing.assert_array_equal(found.reading.scored.log_probs_T, alone.reading.scored.log_probs_T)
        np.testing.assert_array_equal(found.reading.scored.passages_T, alone.reading.scored.passages_T)
        assert row["token_perplexity"] == pytest.approx(alone.reading.measures.token_perplexity)
        assert row["word_perplexity"] == pytest.approx(alone.reading.measures.word_perplexity)
        assert row["bits_per_byte"] == pytest.approx(alone.reading.measures.bits_per_byte)
        assert row["none_token_perplexity"] == pytest.approx(alone.baseline.measures.token_perplexity)
        with_passages, without = (one.measures.token_perplexity for one in (alone.reading, alone.baseline))
        assert row["change"] == pytest.approx(with_passages / without - 1)
        if value != points[0][0]:
            first = made.evaluations[points[0][0]].reading.measures.token_perplexity
            assert row["token_perplexity_from_first"] == pytest.approx(with_passages / first - 1)


@pytest.mark.parametrize("way", ["bm25", "Flat", "IVF2,Flat", "HNSW4", "hybrid", "interpolation", "random", "without"])
def test_every_retriever_gives_the_points_of_a_sweep_what_it_gives_alone(tmp_path: Path, way: str) -> None:
    """Numbers of hits below and above the depth of a fusion, and what an approximate index looks at for them."""
    faiss = way if way in ("Flat", "IVF2,Flat", "HNSW4") else "Flat"
    passages = passages_of(*(f"{a} {b} {b} {c}" for a in "abcd" for b in "efgh" for c in "abg"))
    build_index(passages, tmp_path / "index", encoder=LetterEncoder(), vectors=VectorOptions(faiss=faiss))
    index = open_index(tmp_path / "index")
    options = DenseSearchOptions(nprobe=1 if "IVF" in faiss else None, ef_search=2 if "HNSW" in faiss else None)
    dense = index.dense(options, encoder=LetterEncoder())
    retrievers: dict[str, Retriever] = {
        "bm25": index.bm25,
        "hybrid": Hybrid(index.bm25, dense, FusionOptions(depth=3)),
        "interpolation": Hybrid(index.bm25, dense, FusionOptions(method="interpolation", depth=3)),
        "random": RandomRetriever(len(passages)),
        "without": Hybrid(index.bm25, dense, FusionOptions(depth=3)).only(mask_without(len(passages), [0, 4])),
    }
    source = FromRetriever(retrievers.get(way, dense), index.passages, config={})
    plan = replace(PLAN, max_length=40)
    points = [point(k, Concatenation(documents=k), plan, source) for k in (1, 2, 3, 4, 8)]
    for (_, one), found in zip(points, swept(*points).evaluations.values(), strict=True):
        alone = evaluate_text(TEXT, CountingModel(WordTokenizer()), one.plan, source=source, parts=one.parts)
        np.testing.assert_array_equal(found.reading.scored.log_probs_T, alone.reading.scored.log_probs_T)


def test_a_document_read_for_the_largest_ensemble_is_read_for_all() -> None:
    assert scored(*ENSEMBLES) == scored(ENSEMBLES[-1]), "smaller ensembles, and their baselines, cost no pass"


def test_temperatures_share_everything_and_query_lengths_the_baseline() -> None:
    temperatures = [point(t, Ensemble(documents=3, temperature=t)) for t in (0.5, 1.0, 9.0)]
    assert scored(*temperatures) == scored(temperatures[0])
    one, other = (point(n, InContext(), replace(PLAN, query_tokens=n)) for n in (1, 4))
    assert scored(one, other) < scored(one) + scored(other)


def test_values_become_names_of_folders_that_differ() -> None:
    values = ["d_x.toml-2", "d/x.toml", "d_x.toml", "..", "reader=a:b,c", "é" * 300]
    evaluations: dict[str, Any] = dict.fromkeys(values)
    names = [*Sweep("prompt", evaluations, {}).folder_names().values()]
    assert len({*names}) == len(values)
    assert all(re.fullmatch(r"(?!.*\.\.)[A-Za-z0-9_.-]{1,104}", name) for name in names), names


@pytest.mark.parametrize("names", [["10", "1", "2"], ["k10", "k1", "k2"]])
def test_the_plot_has_a_line_for_numbers_and_points_for_names(tmp_path: Path, names: list[str]) -> None:
    pytest.importorskip("matplotlib")
    rows = [{"documents": name, "f1": 0.5, "f1_low": 0.4, "f1_high": 0.7, "has_answer": None} for name in names]
    rows[1] |= {"f1_low": None, "f1_high": None}
    panels = {"share": {"f1": "F1", "has_answer": "an answer"}}
    draw_lines("documents", rows, panels, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_a_sweep_needs_points() -> None:
    with pytest.raises(UsageError, match="`points` is empty"):
        swept()

"""Evaluations of several documents: each is read without the others, and what was read stands beside every gain."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from ralm.errors import RalmWarning, TextError
from ralm.evaluation.perplexity import Evaluation, evaluate_text
from ralm.protocols import LanguageModel
from ralm.reading.parts import Parts
from ralm.reading.plan import PlanOptions
from ralm.reading.readers import Ensemble, InContext
from ralm.reading.sources import FromRetriever
from ralm.reranking.zero_shot import ZeroShot
from tests.cli.program import STORIES, done, failed, printed, ralm
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, passages_of

DOCUMENTS = ["a b c d e a b c d e f g", "h a b c d", "g h g h a b c d e f g h a b c", "c d"]
PLAN = PlanOptions(stride=3, query_tokens=2, document_tokens=2, max_length=10)
PASSAGES = passages_of("c d", "e f", "g h", "zz", "a b", "b c")
SOURCE = FromRetriever(SharedWordsRetriever(PASSAGES), PASSAGES, config={})
MODEL = CountingModel(WordTokenizer([*"abcdefgh", "zz"]))
OTHER = CountingModel(WordTokenizer([*"hgfedcba", "zz"]), config={"name": "other"})


def read(text: Any, model: LanguageModel = MODEL, plan: PlanOptions = PLAN, **how: Any) -> Evaluation:
    return evaluate_text(text, model, plan, source=SOURCE, baseline=True, **how)


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        replace(PLAN, semantics="official"),
        replace(PLAN, windows="blocked", block=6),
        PlanOptions(
            semantics="official", windows="rolling", stride=3, query_tokens=2, document_tokens=2, max_length=10
        ),
    ],
    ids=["sliding", "official", "blocked", "rolling"],
)
@pytest.mark.parametrize(
    "parts",
    [
        Parts(reader=InContext()),
        Parts(reader=Ensemble(documents=2)),
        Parts(reader=InContext(), reranker=ZeroShot(candidates=3, tokens=1)),
        Parts(reader=InContext(), reranker=ZeroShot(candidates=3, tokens=1, model=OTHER)),
    ],
    ids=["in-context", "ensemble", "reranked", "reranked by another model"],
)
@pytest.mark.filterwarnings("ignore:no token is read with a passage", "ignore:no passage was found")
def test_documents_are_scored_as_if_each_were_alone(plan: PlanOptions, parts: Parts) -> None:
    together, alone = (
        read(DOCUMENTS, plan=plan, parts=parts),
        [read(text, plan=plan, parts=parts) for text in DOCUMENTS],
    )
    scored = together.reading.scored
    np.testing.assert_array_equal(scored.log_probs_T, np.concatenate([one.reading.scored.log_probs_T for one in alone]))
    np.testing.assert_array_equal(scored.passages_T, np.concatenate([one.reading.scored.passages_T for one in alone]))
    assert together.baseline is not None
    for name in ("tokens", "words", "bytes", "nll"):
        measures = [getattr(one.reading.measures, name) for one in alone]
        assert getattr(together.reading.measures, name) == pytest.approx(sum(measures))
    assert together.prepared.document_T.tolist() == [
        number for number, one in enumerate(alone) for _ in range(len(one.reading.scored))
    ]


@pytest.mark.filterwarnings("ignore:no token is read with a passage")
def test_words_and_bytes_are_those_of_the_targets() -> None:
    measures = read("a b c d", plan=PLAN).reading.measures
    assert (measures.tokens, measures.words, measures.bytes) == (3, 3, len(" b c d"))
    official = read("a b c d", plan=replace(PLAN, semantics="official", max_length=4, stride=1)).reading.measures
    assert (official.tokens, official.words, official.bytes) == (4, 3, len("a b c d")), "as the published code counts"


@pytest.mark.filterwarnings("ignore:no passage was found")
def test_words_that_nothing_separates_have_no_perplexity() -> None:
    assert math.isnan(read(["猫は 夢を 見る", "猫は 夢を 見る 猫"]).reading.measures.word_perplexity)
    assert read(["a b 猫 c d"]).reading.measures.words == 4


def test_the_change_has_an_interval_over_documents() -> None:
    random = np.random.default_rng(2)
    texts = [" ".join(random.choice([*"abcdefgh"], 12)) for _ in range(20)]
    together = read(texts)
    assert together.baseline is not None
    gains = []
    for text in texts:
        one = read(text)
        assert one.baseline is not None
        gains.append(one.baseline.measures.nll - one.reading.measures.nll)
    per_token = np.array(gains) / 11
    error = per_token.std(ddof=1) / math.sqrt(20) * 2.0930  # Student's t with 19 degrees of freedom
    assert together.change.value == pytest.approx(math.exp(-per_token.mean()) - 1, rel=1e-5)
    expected = [math.exp(end) - 1 for end in (-per_token.mean() - error, -per_token.mean() + error)]
    assert together.change.ends == pytest.approx(expected, rel=1e-4)


def test_documents_without_a_target_are_left_out() -> None:
    with pytest.warns(RalmWarning, match=r"without a token to score are left out: 2\."):
        together = read([DOCUMENTS[0], "a", DOCUMENTS[1], ""])
    assert together.prepared.documents == DOCUMENTS[:2]
    with pytest.raises(TextError, match="none of 2 documents has a token to score"):
        read(["a", "b"])


def test_what_was_read_is_counted() -> None:
    words = "a b c d e f g h a c e g b d f h"
    passages = passages_of(words, "a b c")
    source = FromRetriever(SharedWordsRetriever(passages), passages, config={})
    plan = PlanOptions(stride=4, query_tokens=4, document_tokens=16, max_length=40)
    found = evaluate_text([words, "c b a c b a c b a"], MODEL, plan, source=source, baseline=True)
    assert (found.read.targets, found.read.with_passage, found.read.passages) == (15 + 8, 15 - 3 + 8 - 3, 1)
    assert ({*found.read.near_duplicates}, found.read.copies) == ({0}, 1)
    assert found.read.gain_of_near_duplicates(found.traced.contributions) == pytest.approx(found.traced.gain.nats)
    with pytest.warns(RalmWarning, match="no passage was found for any of 3 strides"):
        nothing = read("zy zx zy zx zy zx zy", CountingModel(WordTokenizer()))
    assert (nothing.read.with_passage, nothing.change.value, nothing.change.ends) == (0, 0, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"id": name, "title": title, "text": text} for name, title, text in STORIES]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = [{"body": f"The dog number {number} keeps the sheep on the hill."} for number in range(12)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    done("index", tmp_path / "corpus.jsonl", "--out", tmp_path / "index")
    return tmp_path


def test_a_file_of_json_lines_is_evaluated_by_document(folder: Path) -> None:
    short = ["--max-length", 64, "--document-tokens", 24, "--fields", "text=body", "--lm", "ralm-tiny"]
    command = ["eval", folder / "texts.jsonl", *short, "--index", folder / "index", "--baseline"]
    summary = printed(*command, "--out", folder / "with")
    assert summary["config"]["text"]["documents"] == 12
    assert len(summary["change_interval"]) == 2
    assert summary["read"]["with_passage"] > 0
    rows = pq.read_table(folder / "with" / "tokens.parquet").to_pylist()
    assert [*dict.fromkeys(row["document"] for row in rows)] == [*range(12)]
    done("eval", folder / "texts.jsonl", *short, "--out", folder / "without")
    compared = printed("report", folder / "without", folder / "with")
    assert compared["documents"] == 12
    assert compared["runs"][1]["token_perplexity_from_first_interval"] == pytest.approx(
        summary["change_interval"], rel=1e-3
    )
    shown = done(*command).out
    assert "12 documents: 95% intervals" in shown
    assert "tokens were read with a passage; 0 of " in shown
    done(
        "retrieve",
        folder / "texts.jsonl",
        *short[:2],
        *short[4:],
        "--index",
        folder / "index",
        "--out",
        folder / "hits",
    )
    by_file = printed("eval", folder / "texts.jsonl", *short, "--retrieved", folder / "hits")
    assert by_file["nll"] == pytest.approx(summary["nll"], rel=1e-6)
    failed(ralm("eval", folder / "texts.jsonl", "--lm", "ralm-tiny"), 1, "has no field 'text'")

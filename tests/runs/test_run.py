"""The run folder: a row per target token, with its source, and a summary that any JSON reader takes."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import JsonValue

from ralm.errors import DamagedFolderError, FolderExistsError, UsageError
from ralm.evaluation.perplexity import Evaluation, ReadingSettings, evaluate_text
from ralm.evaluation.report import render_report
from ralm.reading.mixture import UniformWeights
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.reading.plan import PlanOptions
from ralm.reading.readers import Ensemble
from ralm.reading.sources import FromRetriever
from ralm.runs.run import PASSAGES, build_report, evaluation_config, open_run, write_run
from ralm.terminal import to_json
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, passages_of
from tests.fuzz.mutations import mend

TEXT = "a b c d e a b c d e f g h a b c d e f g"
OPTIONS = PlanOptions(stride=3, query_tokens=2, document_tokens=4, max_length=10)


def written(out: Path, *, baseline: bool = True, parts: Parts = IN_CONTEXT, config: Any = None) -> Evaluation:
    """An evaluation whose run is in the folder `out`."""
    passages = passages_of("c d c d", "e f e f")
    source = FromRetriever(SharedWordsRetriever(passages), passages, config={"index": "fake"})
    model = CountingModel(WordTokenizer(), max_length=10)
    evaluation = evaluate_text(TEXT, model, OPTIONS, source=source, parts=parts, baseline=baseline)
    settings = (
        evaluation_config(Path("t.txt"), TEXT, model, ReadingSettings(plan=OPTIONS, source=source, parts=parts), None)
        if config is None
        else config
    )
    write_run(out, evaluation, settings, force=False)
    return evaluation


def test_every_target_has_a_row_with_its_source(tmp_path: Path) -> None:
    evaluation = written(tmp_path / "run")
    rows = pq.read_table(tmp_path / "run" / "tokens.parquet").to_pylist()
    assert [row["position"] for row in rows] == list(range(1, 20))
    assert "".join(row["text"] for row in rows) == TEXT.removeprefix("a")
    first, later = rows[0], rows[3]
    assert (first["passage"], first["document_id"], first["title"]) == (None, None, None)
    assert (later["passage"], later["document_id"], later["title"]) == (0, "d0", "")
    assert sum(row["log_prob"] for row in rows) == pytest.approx(-evaluation.reading.measures.nll, rel=1e-6)
    assert evaluation.baseline is not None
    assert sum(row["baseline_log_prob"] for row in rows) == pytest.approx(-evaluation.baseline.measures.nll, rel=1e-6)


def test_without_a_baseline_its_column_is_null(tmp_path: Path) -> None:
    written(tmp_path / "run", baseline=False)
    with pytest.raises(UsageError, match="score the text again with a baseline .`ralm eval --baseline`"):
        open_run(tmp_path / "run")
    assert pq.read_table(tmp_path / "run" / "passages.parquet")["gain"].null_count == 2
    table = pq.read_table(tmp_path / "run" / "tokens.parquet")
    assert table["baseline_log_prob"].null_count == len(table)
    assert "baseline" not in json.loads((tmp_path / "run" / "summary.json").read_text())


def test_the_manifest_holds_configuration_and_environment(tmp_path: Path) -> None:
    written(tmp_path / "run", baseline=False)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["settings"]["config"]["plan"]["stride"] == 3
    assert manifest["settings"]["environment"]["numpy"]
    assert manifest["counts"] == {"targets": 19}


@pytest.mark.parametrize("parts", [IN_CONTEXT, Parts(reader=Ensemble(documents=2), mixer=UniformWeights())])
def test_what_each_passage_was_worth_adds_up_in_every_file(tmp_path: Path, parts: Parts) -> None:
    evaluation = written(tmp_path / "run", parts=parts)
    rows = pq.read_table(tmp_path / "run" / "tokens.parquet").to_pylist()
    passages = pq.read_table(tmp_path / "run" / "passages.parquet").to_pylist()
    gain = json.loads((tmp_path / "run" / "summary.json").read_text())["gain"]
    assert evaluation.baseline is not None
    assert gain["nats"] == pytest.approx(evaluation.baseline.measures.nll - evaluation.reading.measures.nll, abs=1e-5)
    assert sum(row["gain"] for row in rows) == pytest.approx(gain["nats"], abs=1e-5)
    assert sum(row["gain"] for row in passages) + gain["unattributed"] == pytest.approx(gain["nats"], abs=1e-9)
    assert gain["targets"] * gain["per_token"] == pytest.approx(gain["nats"])
    assert [row["passage"] for row in passages] == [row["passage"] for row in gain["passages"]]
    for row in passages:
        worth = sum(
            share * token["gain"]
            for token in rows
            for passage, share in zip(token["passages"], token["posteriors"], strict=True)
            if passage == row["passage"]
        )
        assert row["gain"] == pytest.approx(worth, abs=1e-5)
        assert row["tokens"] == sum(token["passage"] == row["passage"] for token in rows)
    assert {row["text"] for row in passages} == {"c d c d", "e f e f"}


@pytest.mark.parametrize("parts", [IN_CONTEXT, Parts(reader=Ensemble(documents=2))])
def test_a_run_is_read_back_as_it_was_written(tmp_path: Path, parts: Parts) -> None:
    evaluation = written(tmp_path / "run", parts=parts)
    assert evaluation.baseline is not None
    traced = evaluation.traced
    run = open_run(tmp_path / "run")
    assert run.summary["nll"] == evaluation.reading.measures.nll
    assert run.text.before + "".join(run.text.texts) == TEXT
    assert (run.text.before, run.text.texts, run.text.passages) == (traced.before, traced.texts, traced.passages)
    assert run.text.contributions == traced.contributions
    for name in ("log_probs_T", "baseline_T", "gain_T"):
        np.testing.assert_array_equal(getattr(run.text, name), getattr(traced, name))
    for name in ("passages_TK", "posteriors_TK"):
        np.testing.assert_array_equal(getattr(run.text.provenance, name), getattr(traced.provenance, name))


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({}, {}),
        ({"model": {"name": "mine"}, "passages": {}}, {"model": "mine"}),
        ({"model": {}, "passages": None, "reader": None}, {}),
        ({"plan": {"stride": 4, "windows": "sliding"}}, {"stride": "4", "windows": "sliding"}),
        ({"reader": {"reader": "ensemble", "temperature": 2}}, {"reader": "ensemble", "temperature": "2"}),
        ({"reader": "mine", "text": "mine", "plan": None}, {}),
        (
            {"reader": {"reader": "in-context"}, "reranker": {"reranker": "oracle", "candidates": 8}},
            {"reranker": "oracle", "candidates": "8", "reader": "in-context"},
        ),
        ({"reader": {"reader": "ensemble", "mixer": {"mixer": "uniform"}}}, {"reader": "ensemble", "mixer": "uniform"}),
        ({"reader": {"mine": 1}, "passages": {"index": "i"}}, {"index": "i"}),
    ],
)
def test_what_a_run_does_not_record_is_left_out_of_its_report(
    tmp_path: Path, config: dict[str, JsonValue], settings: dict[str, str]
) -> None:
    evaluation = written(tmp_path / "run", config=config)
    report = build_report(open_run(tmp_path / "run"), tokens=5)
    data: Any = report.as_json()
    assert (data["settings"], data["title"], len(data["text"])) == (settings, "run", 5)
    assert data["perplexity"] == pytest.approx(evaluation.reading.measures.token_perplexity)
    assert data["baseline_perplexity"] > 0
    assert render_report(report)


def test_an_existing_run_is_kept(tmp_path: Path) -> None:
    written(tmp_path / "run")
    with pytest.raises(FolderExistsError):
        written(tmp_path / "run")


def test_numbers_that_json_has_no_word_for_become_null() -> None:
    assert json.loads(to_json({"a": [math.inf, 1.5], "b": {"c": math.nan}})) == {"a": [None, 1.5], "b": {"c": None}}


@pytest.mark.parametrize(
    "what", ["a column", "a kind", "a gap", "a passage", "a name", "weights", "no table", "no summary"]
)
def test_runs_whose_tables_do_not_fit_together(tmp_path: Path, what: str) -> None:
    run = tmp_path / "run"
    written(run)
    tokens, passages = (pq.read_table(run / name) for name in ("tokens.parquet", PASSAGES))
    shuffled = tokens["posteriors"].take(list(range(18, -1, -1)))
    match what:
        case "a column":
            tokens = tokens.drop_columns("posteriors")
        case "a kind":
            tokens = tokens.set_column(tokens.schema.get_field_index("passages"), "passages", tokens["passage"])
        case "a gap":
            place = tokens.schema.get_field_index("log_prob")
            tokens = tokens.set_column(place, "log_prob", pa.nulls(tokens.num_rows, pa.float32()))
        case "a passage":
            pq.write_table(passages.slice(1), run / PASSAGES)
        case "weights":
            tokens = tokens.set_column(tokens.schema.get_field_index("posteriors"), "posteriors", shuffled)
        case "no summary":
            (run / "summary.json").write_text("{")
    pq.write_table(tokens, run / "tokens.parquet")
    if what == "no table":
        (run / "tokens.parquet").write_text("nothing of the kind")
    if what == "a name":
        content = (run / "tokens.parquet").read_bytes()
        (run / "tokens.parquet").write_bytes(content.replace(b"posteriors", b"posterior\xff"))
    mend(run)
    with pytest.raises(DamagedFolderError, match="is damaged"):
        open_run(run)

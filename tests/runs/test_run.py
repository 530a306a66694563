"""The run folder: a row per target token, with its source, and a summary that any JSON reader takes."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import JsonValue

from ralm.errors import DamagedFolderError, FolderExistsError, UsageError
from ralm.evaluation.perplexity import Evaluation, evaluate_text
from ralm.reading.ensemble import Ensemble
from ralm.reading.plan import PlanOptions
from ralm.reading.sources import FromRetriever
from ralm.runs.report import build_report, render_report
from ralm.runs.run import PASSAGES, evaluation_config, open_run, to_json, write_run
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, passages_of
from tests.fuzz.mutations import mend

TEXT = "a b c d e a b c d e f g h a b c d e f g"
OPTIONS = PlanOptions(stride=3, query_tokens=2, document_tokens=4, max_length=10)


def evaluated(*, baseline: bool, reader: Ensemble | None = None) -> tuple[Evaluation, dict[str, object]]:
    passages = passages_of("c d c d", "e f e f")
    source = FromRetriever(SharedWordsRetriever(passages), passages, config={"index": "fake"})
    model = CountingModel(WordTokenizer(), max_length=10)
    evaluation = evaluate_text(TEXT, model, OPTIONS, source=source, reader=reader, baseline=baseline)
    return evaluation, dict(evaluation_config(Path("t.txt"), TEXT, model, OPTIONS, source, None))


def test_every_target_has_a_row_with_its_source(tmp_path: Path) -> None:
    evaluation, config = evaluated(baseline=True)
    write_run(tmp_path / "run", evaluation, config, force=False)  # type: ignore[arg-type]
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
    evaluation, config = evaluated(baseline=False)
    write_run(tmp_path / "run", evaluation, config, force=False)  # type: ignore[arg-type]
    table = pq.read_table(tmp_path / "run" / "tokens.parquet")
    assert table["baseline_log_prob"].null_count == len(table)
    assert "baseline" not in json.loads((tmp_path / "run" / "summary.json").read_text())


def test_the_manifest_holds_configuration_and_environment(tmp_path: Path) -> None:
    evaluation, config = evaluated(baseline=False)
    write_run(tmp_path / "run", evaluation, config, force=False)  # type: ignore[arg-type]
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["settings"]["config"] == json.loads(json.dumps(config))
    assert manifest["settings"]["config"]["plan"]["stride"] == 3
    assert manifest["settings"]["environment"]["numpy"]
    assert manifest["counts"] == {"targets": 19}


@pytest.mark.parametrize("reader", [None, Ensemble(documents=2, weights="uniform")])
def test_what_each_passage_was_worth_adds_up_in_every_file(tmp_path: Path, reader: Ensemble | None) -> None:
    evaluation, config = evaluated(baseline=True, reader=reader)
    write_run(tmp_path / "run", evaluation, config, force=False)  # type: ignore[arg-type]
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


@pytest.mark.parametrize("reader", [None, Ensemble(documents=2)])
def test_a_run_is_read_back_as_it_was_written(tmp_path: Path, reader: Ensemble | None) -> None:
    evaluation, config = evaluated(baseline=True, reader=reader)
    write_run(tmp_path / "run", evaluation, config, force=False)  # type: ignore[arg-type]
    assert evaluation.baseline is not None
    written = evaluation.traced
    run = open_run(tmp_path / "run")
    assert run.summary == json.loads(json.dumps(evaluation.summary(config)))  # type: ignore[arg-type]
    assert run.text.before + "".join(run.text.texts) == TEXT
    assert (run.text.before, run.text.texts, run.text.passages) == (written.before, written.texts, written.passages)
    assert run.text.contributions == written.contributions
    for name in ("log_probs_T", "baseline_T", "gain_T"):
        np.testing.assert_array_equal(getattr(run.text, name), getattr(written, name))
    for name in ("passages_TK", "posteriors_TK"):
        np.testing.assert_array_equal(getattr(run.text.provenance, name), getattr(written.provenance, name))


def test_a_run_that_no_report_can_be_made_of(tmp_path: Path) -> None:
    evaluation, config = evaluated(baseline=False)
    write_run(tmp_path / "run", evaluation, config, force=False)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="score the text again with a baseline .`ralm eval --baseline`"):
        open_run(tmp_path / "run")
    passages = pq.read_table(tmp_path / "run" / "passages.parquet")
    assert passages["gain"].null_count == passages.num_rows == 2


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({}, {}),
        ({"model": {"name": "mine"}, "passages": {}}, {"model": "mine", "passages": "retrieved"}),
        ({"model": {}, "passages": None, "reader": None}, {"passages": "none", "reader": "no passage"}),
        ({"plan": {"stride": 4, "windows": "sliding"}}, {"stride": "4", "windows": "sliding"}),
        ({"reader": {"reader": "ensemble", "temperature": 2}}, {"reader": "ensemble of several, temperature 2"}),
        ({"reader": "mine", "text": "mine", "plan": None}, {}),
        ({"reader": {"reader": "in-context"}, "reranker": None}, {"reader": "the first passage"}),
        ({"reader": {"reader": "ensemble", "documents": 3}}, {"reader": "ensemble of 3"}),
        (
            {"reader": {"reader": "in-context"}, "reranker": {"reranker": "oracle", "candidates": 8}},
            {"reader": "the best of 8 passages (oracle)"},
        ),
        (
            {
                "reader": {"reader": "concatenation", "documents": 2},
                "reranker": {"reranker": "zero-shot", "candidates": 8},
            },
            {
                "reader": "2 passages in one context, chosen from 8 (zero-shot)",
                "attribution": "all of a token's gain counts for the first passage of its context",
            },
        ),
        ({"reader": {"reader": "mine"}}, {"reader": "mine"}),
        ({"reader": {"mine": 1}, "passages": {"index": "i"}}, {"passages": "retrieved from i"}),
    ],
)
def test_what_a_run_does_not_record_is_left_out_of_its_report(
    tmp_path: Path, config: dict[str, JsonValue], settings: dict[str, str]
) -> None:
    evaluation, _ = evaluated(baseline=True)
    write_run(tmp_path / "run", evaluation, config, force=False)
    report = build_report(open_run(tmp_path / "run"), tokens=5)
    assert dict(report.settings) == settings
    assert report.title == "run"
    assert report.perplexity == pytest.approx(evaluation.reading.measures.token_perplexity)
    assert report.baseline_perplexity > 0
    assert render_report(report)


def test_an_existing_run_is_kept(tmp_path: Path) -> None:
    evaluation, config = evaluated(baseline=False)
    write_run(tmp_path / "run", evaluation, config, force=False)  # type: ignore[arg-type]
    with pytest.raises(FolderExistsError):
        write_run(tmp_path / "run", evaluation, config, force=False)  # type: ignore[arg-type]


def test_numbers_that_json_has_no_word_for_become_null() -> None:
    assert json.loads(to_json({"a": [math.inf, 1.5], "b": {"c": math.nan}})) == {"a": [None, 1.5], "b": {"c": None}}


@pytest.mark.parametrize("what", ["a column", "a passage", "weights", "nulls", "no table", "no summary"])
def test_runs_whose_tables_do_not_fit_together(tmp_path: Path, what: str) -> None:
    evaluation, config = evaluated(baseline=True)
    write_run(tmp_path / "run", evaluation, config, force=False)  # type: ignore[arg-type]
    file = tmp_path / "run" / "tokens.parquet"
    table, none = pq.read_table(file), pa.nulls(19)
    match what:
        case "a column":
            pq.write_table(table.drop_columns("posteriors"), file)
        case "a passage":
            pq.write_table(pq.read_table(tmp_path / "run" / PASSAGES).slice(1), tmp_path / "run" / PASSAGES)
        case "weights":
            place = table.schema.get_field_index("posteriors")
            pq.write_table(
                table.set_column(place, "posteriors", table["posteriors"].take(list(range(18, -1, -1)))), file
            )
        case "nulls":
            place = table.schema.get_field_index("text")
            pq.write_table(table.set_column(place, "text", none.cast(pa.string())), file)
        case "no table":
            file.write_text("nothing of the kind")
        case "no summary":
            (tmp_path / "run" / "summary.json").write_text("{")
    mend(tmp_path / "run")
    with pytest.raises(DamagedFolderError, match="is damaged"):
        open_run(tmp_path / "run")

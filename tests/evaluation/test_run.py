"""The run folder: a row per target token, with its source, and a summary that any JSON reader takes."""

import json
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ralm.errors import FolderExistsError
from ralm.evaluation.perplexity import Evaluation, evaluate_text
from ralm.evaluation.run import evaluation_config, to_json, write_run
from ralm.pipeline import FromRetriever
from ralm.reading.plan import PlanOptions
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, passages_of

TEXT = "a b c d e a b c d e f g h a b c d e f g"
OPTIONS = PlanOptions(stride=3, query_tokens=2, document_tokens=4, max_length=10)


def evaluated(*, baseline: bool) -> tuple[Evaluation, CountingModel, dict[str, object]]:
    passages = passages_of("c d c d", "e f e f")
    source = FromRetriever(SharedWordsRetriever(passages), passages, config={"index": "fake"})
    model = CountingModel(WordTokenizer(), max_length=10)
    evaluation = evaluate_text(TEXT, model, OPTIONS, source=source, baseline=baseline)
    return evaluation, model, dict(evaluation_config(Path("t.txt"), TEXT, model, OPTIONS, source, None))


def test_every_target_has_a_row_with_its_source(tmp_path: Path) -> None:
    evaluation, model, config = evaluated(baseline=True)
    write_run(tmp_path / "run", evaluation, model.tokenizer, config, force=False)  # type: ignore[arg-type]
    rows = pq.read_table(tmp_path / "run" / "tokens.parquet").to_pylist()
    assert [row["position"] for row in rows] == list(range(1, 20))
    assert "".join(row["text"] for row in rows) == TEXT.removeprefix("a ") + " "
    first, later = rows[0], rows[3]
    assert (first["passage"], first["document_id"], first["title"]) == (None, None, None)
    assert (later["passage"], later["document_id"], later["title"]) == (0, "d0", "")
    assert sum(row["log_prob"] for row in rows) == pytest.approx(-evaluation.reading.measures.nll, rel=1e-6)
    assert evaluation.baseline is not None
    assert sum(row["baseline_log_prob"] for row in rows) == pytest.approx(-evaluation.baseline.measures.nll, rel=1e-6)


def test_without_a_baseline_its_column_is_null(tmp_path: Path) -> None:
    evaluation, model, config = evaluated(baseline=False)
    write_run(tmp_path / "run", evaluation, model.tokenizer, config, force=False)  # type: ignore[arg-type]
    table = pq.read_table(tmp_path / "run" / "tokens.parquet")
    assert table["baseline_log_prob"].null_count == len(table)
    assert "baseline" not in json.loads((tmp_path / "run" / "summary.json").read_text())


def test_the_manifest_holds_configuration_and_environment(tmp_path: Path) -> None:
    evaluation, model, config = evaluated(baseline=False)
    write_run(tmp_path / "run", evaluation, model.tokenizer, config, force=False)  # type: ignore[arg-type]
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["settings"]["config"] == json.loads(json.dumps(config))
    assert manifest["settings"]["config"]["plan"]["stride"] == 3
    assert manifest["settings"]["environment"]["numpy"]
    assert manifest["counts"] == {"targets": 19}


def test_an_existing_run_is_kept(tmp_path: Path) -> None:
    evaluation, model, config = evaluated(baseline=False)
    write_run(tmp_path / "run", evaluation, model.tokenizer, config, force=False)  # type: ignore[arg-type]
    with pytest.raises(FolderExistsError):
        write_run(tmp_path / "run", evaluation, model.tokenizer, config, force=False)  # type: ignore[arg-type]


def test_numbers_that_json_has_no_word_for_become_null() -> None:
    assert json.loads(to_json({"a": [math.inf, 1.5], "b": {"c": math.nan}})) == {"a": [None, 1.5], "b": {"c": None}}

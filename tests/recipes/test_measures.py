"""Figures of finished steps are those of plain loops over their tables."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ralm.errors import DamagedFolderError
from ralm.recipes.measures import (
    Measure,
    Sample,
    choice_accuracy,
    class_of,
    exact_matches,
    exact_matches_at,
    gain_below_overlap,
    gain_by_frequency,
    gain_of_class,
    gold_log_probs_of,
    perplexity_of,
    relative_gain,
    share_below_overlap,
    stretches,
    words_of_tokens,
)
from ralm.recipes.recipe import Order
from ralm.recipes.results import order_row
from ralm.recipes.steps import Step
from ralm.retrieval.analysis import Analyser, analysis_by_name
from ralm.retrieval.index import open_index
from ralm.storage.manifest import write_manifest
from ralm.storage.outputs import FolderKind, new_folder
from tests.cli.program import STORIES, TEXT, ralm
from tests.tiny_models import save_tiny_model

WITH, WITHOUT, CORPUS = Step("eval", ("with",)), Step("eval", ("without",)), Step("index", ())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Step, Path]:
    folder = tmp_path_factory.mktemp("measured")
    rows = [{"id": name, "title": title, "text": text} for name, title, text in STORIES]
    # a passage that repeats a part of the text
    rows.append({"id": "copy", "title": "", "text": TEXT[:300]})
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "text.txt").write_text(TEXT)
    save_tiny_model("gpt2", folder / "lm")
    found = {WITH: folder / "with", WITHOUT: folder / "without", CORPUS: folder / "index"}
    commands = [
        ["index", folder / "corpus.jsonl", "--words", "25", "--out", found[CORPUS]],
        ["eval", folder / "text.txt", "--index", found[CORPUS], "--lm", folder / "lm", "--out", found[WITH]],
        ["eval", folder / "text.txt", "--lm", folder / "lm", "--out", found[WITHOUT]],
    ]
    for command in commands:
        short = ["--max-length", "64", "--document-tokens", "24"] if command[0] == "eval" else []
        answer = ralm(*command, *short)
        assert answer.status == 0, answer.err
    return found


def tokens(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "tokens.parquet").to_pylist()
    return rows


def gains(folders: dict[Step, Path]) -> list[float]:
    pairs = zip(tokens(folders[WITH]), tokens(folders[WITHOUT]), strict=True)
    return [float(one["log_prob"]) - float(other["log_prob"]) for one, other in pairs]


@pytest.mark.parametrize(
    ("per", "name"), [("token", "token_perplexity"), ("word", "word_perplexity"), ("byte", "bits_per_byte")]
)
def test_perplexities_are_those_of_the_run(folders: dict[Step, Path], per: Any, name: str) -> None:
    sample = perplexity_of(WITH, per).sample(folders)
    summary = json.loads((folders[WITH] / "summary.json").read_text())
    assert sample.value == pytest.approx(summary[name], rel=1e-5)
    low, high = sample.interval or (math.nan, math.nan)
    assert low < sample.value < high


def test_a_relative_gain_is_that_of_the_bits(folders: dict[Step, Path]) -> None:
    gain = relative_gain(WITH, WITHOUT).sample(folders)
    bits = [perplexity_of(one, "byte").sample(folders).value for one in (WITH, WITHOUT)]
    assert gain.value == pytest.approx(100 * (1 - bits[0] / bits[1]), rel=1e-6)
    low, high = gain.interval or (math.nan, math.nan)
    assert low < gain.value < high


def test_short_texts_have_twenty_stretches_and_long_ones_of_512() -> None:
    assert stretches(np.ones(100), lambda mean: mean).counts_U.tolist() == [5] * 20
    assert stretches(np.ones(512 * 20 + 3), lambda mean: mean).counts_U.tolist() == [512] * 20 + [3]
    assert stretches(np.ones(1), lambda mean: mean).interval is None


def order_of(better: Measure, worse: Measure, folders: dict[Step, Path]) -> dict[str, Any]:
    return order_row(Order(better, worse, ""), better.sample(folders), worse.sample(folders))


def test_an_order_is_judged_by_paired_draws(folders: dict[Step, Path]) -> None:
    one = order_of(perplexity_of(WITH), perplexity_of(WITHOUT), folders)
    assert one["change"] == pytest.approx(math.exp(-np.mean(gains(folders))) - 1, rel=1e-4)
    assert one["interval"] is not None
    both = order_of(perplexity_of(WITHOUT), perplexity_of(WITH), folders)
    assert {one["verdict"], both["verdict"]} in ({"seen", "the other way"}, {"not clear"})
    same = order_of(perplexity_of(WITH), perplexity_of(WITH), folders)
    assert (same["change"], same["interval"], same["verdict"]) == (0, [0, 0], "not clear")


def given(*values: float) -> Measure:
    """Values that are given, a question each."""
    sample = Sample(np.array(values), np.ones(len(values), np.int64), lambda mean: mean)
    return Measure("given", lambda _: sample, (WITH,))


def test_verdicts_follow_the_interval() -> None:
    folders: dict[Step, Path] = {WITH: Path()}
    high, low = given(*[1.0] * 30), given(*[0.0] * 30)
    assert order_of(high, low, folders)["verdict"] == "seen"
    assert order_of(low, high, folders)["verdict"] == "the other way"
    assert order_of(given(*[0.0, 1.0] * 15), given(*[1.0, 0.0] * 15), folders)["verdict"] == "not clear"
    assert order_of(high, given(*[0.0] * 29), folders)["verdict"] == "not comparable"


@pytest.mark.parametrize(
    ("text", "before", "kind"),
    [
        (" Radium", "the", "capitalised word"),
        (" radium", "the", "other word"),
        ("ium", " rad", "rest of a word"),
        ("ium", " ", "other word"),
        (" 1898", "in", "number"),
        ("98", " 18", "number"),
        (".", "radium", "punctuation and space"),
        ("\n", ".", "punctuation and space"),
        (" \N{LATIN CAPITAL LETTER E WITH ACUTE}t\N{LATIN SMALL LETTER E WITH ACUTE}", "un", "capitalised word"),
    ],
)
def test_classes_of_tokens(text: str, before: str, kind: str) -> None:
    assert class_of(text, before) == kind


def test_words_of_tokens() -> None:
    texts = ["The", " rad", "ium", ",", " of", " 18", "98"]
    assert words_of_tokens(texts) == ["The", "radium", "radium", "", "of", "1898", "1898"]


def test_gains_by_class_are_those_of_a_loop(folders: dict[Step, Path]) -> None:
    rows, gain = tokens(folders[WITH]), gains(folders)
    kinds = [class_of(str(row["text"]), str(rows[i - 1]["text"]) if i else "") for i, row in enumerate(rows)]
    for kind in {*kinds}:
        own = [value for value, found in zip(gain, kinds, strict=True) if found == kind]
        measured = gain_of_class(WITH, WITHOUT, kind).sample(folders)
        assert measured.value == pytest.approx(np.mean(own), abs=1e-6)


def test_gains_by_frequency_are_those_of_a_loop(folders: dict[Step, Path]) -> None:
    opened, analyse = open_index(folders[CORPUS]), Analyser(analysis_by_name("english"))
    passages = [{*analyse(f"{one.title} {one.text}")} for one in opened.passages]
    words = words_of_tokens([str(row["text"]) for row in tokens(folders[WITH])])

    def rate(word: str) -> float | None:
        counts = [sum(term in passage for passage in passages) for term in analyse(word)]
        return 1e6 * min(counts) / len(passages) if counts else None

    filled = 0
    for least, most in ((0.0, 1.5e5), (1.5e5, 4e5), (4e5, None)):
        own = [
            value
            for value, found in zip(gains(folders), map(rate, words), strict=True)
            if found is not None and least <= found < (math.inf if most is None else most)
        ]
        filled += bool(own)
        measured = gain_by_frequency(WITH, WITHOUT, CORPUS, least, most).sample(folders)
        expected = np.mean(own) if own else math.nan
        assert measured.value == pytest.approx(expected, abs=1e-6, nan_ok=True)
    assert filled > 1


def test_the_contamination_curve_is_that_of_a_loop(folders: dict[Step, Path]) -> None:
    rows, gain = tokens(folders[WITH]), gains(folders)
    passages = pq.read_table(folders[WITH] / "passages.parquet").to_pylist()
    evaluated, overlap = runs(TEXT), {}
    for row in passages:
        own = runs(row["text"])
        overlap[row["passage"]] = sum(one in evaluated for one in own) / len(own) if own else 0.0
    assert any(overlap.values())
    for most in (0.0, 0.3, 1.0):
        kept = [row["passage"] is None or overlap[row["passage"]] <= most for row in rows]
        left = [value if stays else 0.0 for value, stays in zip(gain, kept, strict=True)]
        measured = gain_below_overlap(WITH, WITHOUT, 100 * most).sample(folders)
        assert measured.value == pytest.approx(100 * (1 - math.exp(-np.mean(left))), abs=1e-4)
        share = share_below_overlap(WITH, 100 * most).sample(folders)
        assert share.value == pytest.approx(100 * np.mean(kept))


def runs(text: str) -> list[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return [tuple(words[begin : begin + 8]) for begin in range(len(words) - 8 + 1)]


def finished(folder: Path, kind: str, files: dict[str, Any]) -> dict[Step, Path]:
    """A finished step: tables in Parquet, or a summary."""
    with new_folder(folder, kind=FolderKind(kind), force=False) as written:
        for name, content in files.items():
            if name.endswith(".parquet"):
                pq.write_table(pa.table(content), written / name)
            else:
                (written / name).write_text(json.dumps(content))
        write_manifest(written, kind=FolderKind(kind), settings={}, counts={})
    return {WITH: folder}


def test_answers_and_choices(tmp_path: Path) -> None:
    table = {
        "exact_match": [True, False, None, True],
        "gold_log_prob": [-1.0, -4.0, None, -3.0],
        "gold_tokens": [1, 3, 0, 2],
    }
    answers = finished(tmp_path / "answers", "answers", {"answers.parquet": table})
    assert exact_matches(WITH).sample(answers).value == pytest.approx(200 / 3)
    assert gold_log_probs_of(WITH).sample(answers).value == pytest.approx(-8 / 6)
    rows = {"right": [True, False, True], "subject": ["anatomy", "philosophy", "anatomy"]}
    choices = finished(tmp_path / "choices", "choices", {"choices.parquet": rows})
    assert choice_accuracy(WITH).sample(choices).value == pytest.approx(200 / 3)
    assert choice_accuracy(WITH, "STEM").sample(choices).value == 100
    assert choice_accuracy(WITH, "humanities").sample(choices).value == 0
    assert math.isnan(choice_accuracy(WITH, "social sciences").sample(choices).value), "there are none"
    [sweep] = finished(tmp_path / "sweep", "sweep", {"summary.json": {}}).values()
    finished(sweep / "documents-2", "answers", {"answers.parquet": {"exact_match": [True, False, True, True]}})
    finished(sweep / "documents-0", "answers", {"answers.parquet": {"exact_match": [None, None]}})
    assert exact_matches_at(WITH, 2).sample({WITH: sweep}).value == 75
    assert math.isnan(exact_matches_at(WITH, 0).sample({WITH: sweep}).value), "no question could be judged"


def test_steps_that_were_altered_give_no_figure(folders: dict[Step, Path], tmp_path: Path) -> None:
    table = {"exact_match": [False, False], "gold_log_prob": [-1.0, -4.0], "gold_tokens": [1, 3]}
    answers = finished(tmp_path / "answers", "answers", {"answers.parquet": table})
    pq.write_table(pa.table({**table, "exact_match": [True, True]}), answers[WITH] / "answers.parquet")
    rows = {"right": [True, False], "subject": ["anatomy", "anatomy"]}
    choices = finished(tmp_path / "choices", "choices", {"choices.parquet": rows})
    pq.write_table(pa.table({**rows, "right": [True, True]}), choices[WITH] / "choices.parquet")
    run = {WITH: tmp_path / "run"}
    shutil.copytree(folders[WITH], run[WITH])
    (run[WITH] / "summary.json").write_text("{}")
    altered = (
        (exact_matches(WITH), answers),
        (choice_accuracy(WITH), choices),
        (perplexity_of(WITH), run),
    )
    for measure, found in altered:
        with pytest.raises(DamagedFolderError, match="is damaged"):
            measure.sample(found)


def test_an_interval_is_of_the_units_that_count() -> None:
    """A resample of nothing but units that count nothing would have no figure."""
    sums, counts = np.array([1.0, 0.0, 1.0] + 17 * [0.0]), np.array([1, 1, 1] + 17 * [0])
    few = Sample(sums, counts, lambda mean: 100 * mean)
    assert few.interval == Sample(sums[:3], counts[:3], lambda mean: 100 * mean).interval
    assert few.interval is not None
    assert not any(map(math.isnan, few.interval))
    assert Sample(sums[2:], counts[2:], lambda mean: mean).interval is None, "of one unit"


def test_a_text_without_spaces_has_no_perplexity_by_them(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("猫は夢を見る。" * 9)
    answer = ralm("eval", tmp_path / "text.txt", "--lm", "ralm-tiny", "--out", tmp_path / "run")
    assert answer.status == 0, answer.err
    assert math.isnan(perplexity_of(WITH, "space").sample({WITH: tmp_path / "run"}).value)

"""Figures of finished steps are those of plain loops over their tables."""

import json
import math
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

from ralm.errors import DamagedFolderError
from ralm.evaluation.intervals import Column, Units, UnitTable
from ralm.recipes.measures import (
    Sample,
    class_of,
    gain_below_overlap,
    gain_by_frequency,
    gain_of_class,
    measure_of_run,
    perplexity_by_spaces,
    relative_gain,
    share_below_overlap,
    words_of_tokens,
)
from ralm.recipes.recipe import Measure, Order
from ralm.recipes.results import order_rows
from ralm.retrieval.analysis import Analyser, analysis_by_name
from ralm.retrieval.index import open_index
from ralm.runs.run import write_units
from ralm.storage.manifest import write_manifest
from ralm.storage.outputs import FolderKind, new_folder
from tests.cli.program import STORIES, TEXT, ralm
from tests.tiny_models import save_tiny_model


class Folders(NamedTuple):
    """The folders of a run with passages, of one without, and of the index."""

    run: Path
    without: Path
    corpus: Path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    folder = tmp_path_factory.mktemp("measured")
    rows = [{"id": name, "title": title, "text": text} for name, title, text in STORIES]
    # a passage that repeats a part of the text
    rows.append({"id": "copy", "title": "", "text": TEXT[:300]})
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "text.txt").write_text(TEXT)
    save_tiny_model("gpt2", folder / "lm")
    made = Folders(folder / "with", folder / "without", folder / "index")
    read = ["--index", made.corpus, "--baseline"]
    commands = [
        ["index", folder / "corpus.jsonl", "--words", "25", "--out", made.corpus],
        ["eval", folder / "text.txt", *read, "--lm", folder / "lm", "--out", made.run],
        ["eval", folder / "text.txt", "--lm", folder / "lm", "--out", made.without],
    ]
    for command in commands:
        short = ["--max-length", "64", "--document-tokens", "24"] if command[0] == "eval" else []
        answer = ralm(*command, *short)
        assert answer.status == 0, answer.err
    return made


def tokens(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "tokens.parquet").to_pylist()
    return rows


def gains(folders: Folders) -> list[float]:
    pairs = zip(tokens(folders.run), tokens(folders.without), strict=True)
    return [float(one["log_prob"]) - float(other["log_prob"]) for one, other in pairs]


def test_perplexities_are_those_of_the_run(folders: Folders) -> None:
    summary = json.loads((folders.run / "summary.json").read_text())
    for name in ("token_perplexity", "word_perplexity", "bits_per_byte"):
        assert measure_of_run(folders.run, name).estimate.value == pytest.approx(summary[name], rel=1e-5)
    by_spaces = summary["token_perplexity"] ** (summary["tokens"] / TEXT.count(" "))
    assert perplexity_by_spaces(folders.run).estimate.value == pytest.approx(by_spaces, rel=1e-4)


def test_a_relative_gain_is_that_of_the_bits(folders: Folders) -> None:
    gain = relative_gain(folders.run, folders.without)
    bits = [measure_of_run(path, "bits_per_byte").estimate.value for path in (folders.run, folders.without)]
    assert gain.estimate.value == pytest.approx(100 * (1 - bits[0] / bits[1]), rel=1e-6)


def judged(*pairs: tuple[Sample, Sample]) -> list[dict[str, Any]]:
    """The rows of orders, each of a better and a worse sample."""
    orders: list[Order] = []
    samples: dict[Measure, Sample] = {}
    for place, pair in enumerate(pairs):
        better, worse = (Measure("measure_of_run", (), (place, end)) for end in ("better", "worse"))
        samples |= dict(zip((better, worse), pair, strict=True))
        orders.append(Order(better, worse, ""))
    return order_rows(orders, samples)


def test_an_order_is_judged_by_the_paired_change(folders: Folders) -> None:
    read, plain = (measure_of_run(path, "token_perplexity") for path in (folders.run, folders.without))
    [order] = judged((read, plain))
    assert order["change"] == pytest.approx(math.exp(-np.mean(gains(folders))) - 1, rel=1e-4)
    [same] = judged((read, read))
    assert (same["change"], same["interval"], same["verdict"]) == (0, None, "no interval")


def answered(*values: float) -> Sample:
    return Sample(units=Units.each(np.array(values)), statistic="share", factor=100)


def test_verdicts_follow_the_paired_change() -> None:
    high, low = answered(0.0, *[1.0] * 29), answered(*[0.0] * 30)
    alternating = answered(*[0.0, 1.0] * 15), answered(*[1.0, 0.0] * 15)
    few = answered(*[1.0] * 9), answered(*[0.0, 1.0] * 4, 0.0)
    other = high, answered(*[0.0] * 29)
    rows = judged((high, low), (low, high), alternating, few, other)
    assert [row["verdict"] for row in rows] == ["seen", "the other way", "not clear", "no interval", "not comparable"]
    assert rows[0]["change"] == pytest.approx(100 * 29 / 30)


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


def test_gains_by_class_are_those_of_a_loop(folders: Folders) -> None:
    rows, gain = tokens(folders.run), gains(folders)
    kinds = [class_of(str(row["text"]), str(rows[i - 1]["text"]) if i else "") for i, row in enumerate(rows)]
    for kind in {*kinds}:
        own = [value for value, found in zip(gain, kinds, strict=True) if found == kind]
        mean = gain_of_class(folders.run, kind)
        assert mean.estimate.value == pytest.approx(np.mean(own), abs=1e-6)


def test_gains_by_frequency_are_those_of_a_loop(folders: Folders) -> None:
    opened, analyse = open_index(folders.corpus), Analyser(analysis_by_name("english"))
    passages = [{*analyse(f"{one.title} {one.text}")} for one in opened.passages]
    words = words_of_tokens([str(row["text"]) for row in tokens(folders.run)])

    def rate(word: str) -> float | None:
        counts = [sum(term in passage for passage in passages) for term in analyse(word)]
        return 1e6 * min(counts) / len(passages) if counts else None

    filled = 0
    for least, most in ((0.0, 1.5e5), (1.5e5, 4e5), (4e5, math.inf)):
        own = [
            value
            for value, found in zip(gains(folders), map(rate, words), strict=True)
            if found is not None and least <= found < most
        ]
        filled += bool(own)
        mean = gain_by_frequency(folders.run, folders.corpus, least, most)
        expected = np.mean(own) if own else math.nan
        assert mean.estimate.value == pytest.approx(expected, abs=1e-6, nan_ok=True)
    assert filled > 1


def test_the_contamination_curve_is_that_of_a_loop(folders: Folders) -> None:
    rows, gain = tokens(folders.run), gains(folders)
    passages = pq.read_table(folders.run / "passages.parquet").to_pylist()
    evaluated, overlap = runs(TEXT), {}
    for row in passages:
        own = runs(row["text"])
        overlap[row["passage"]] = sum(one in evaluated for one in own) / len(own) if own else 0.0
    assert any(overlap.values())
    for most in (0.0, 0.3, 1.0):
        kept = [row["passage"] is None or overlap[row["passage"]] <= most for row in rows]
        left = [value if stays else 0.0 for value, stays in zip(gain, kept, strict=True)]
        gain_below = gain_below_overlap(folders.run, 100 * most)
        assert gain_below.estimate.value == pytest.approx(100 * (1 - math.exp(-np.mean(left))), abs=1e-4)
        share = share_below_overlap(folders.run, 100 * most)
        assert share.estimate.value == pytest.approx(100 * np.mean(kept))


def runs(text: str) -> list[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return [tuple(words[begin : begin + 8]) for begin in range(len(words) - 8 + 1)]


def finished(folder: Path, **columns: tuple[list[float], list[int], Any]) -> Path:
    """A finished run with these sums, counts and statistics of its measures."""
    kept = {name: Column(Units(np.array(sums), np.array(counts)), how) for name, (sums, counts, how) in columns.items()}
    with new_folder(folder, kind=FolderKind("answers"), force=False) as written:
        write_units(written, UnitTable("questions", "", kept))
        write_manifest(written, kind=FolderKind("answers"), settings={}, counts={})
    return folder


def test_measures_of_answers(tmp_path: Path) -> None:
    """Shares are in percent; a sweep has a run for each number of documents; nothing is known of a missing measure."""
    gold = ([-1.0, -4.0, 0.0], [1, 3, 0], "mean")
    answers = finished(tmp_path / "answers", exact_match=([1, 0, 1], [1, 1, 1], "share"), gold_log_prob=gold)
    assert measure_of_run(answers, "exact_match").estimate.value == pytest.approx(200 / 3)
    assert measure_of_run(answers, "gold_log_prob").estimate.value == pytest.approx(-5 / 4)
    assert math.isnan(measure_of_run(answers, "STEM").estimate.value)
    finished(tmp_path / "sweep" / "documents-2", exact_match=([1, 0, 1, 1], [1, 1, 1, 1], "share"))
    finished(tmp_path / "sweep" / "documents-0", exact_match=([0, 0], [0, 0], "share"))
    assert measure_of_run(tmp_path / "sweep", "exact_match", 2).estimate.value == 75
    assert math.isnan(measure_of_run(tmp_path / "sweep", "exact_match", 0).estimate.value), (
        "no question could be judged"
    )


def test_runs_that_were_altered_give_no_figure(folders: Folders, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(folders.run, run)
    (run / "tokens.parquet").write_bytes(b"")
    for measure in (partial(gain_of_class, run, "number"), partial(measure_of_run, run, "token_perplexity")):
        with pytest.raises(DamagedFolderError, match="is damaged"):
            measure()


def test_a_text_without_spaces_has_no_perplexity_by_them(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\u732b\u306f\u5922\u3092\u898b\u308b\u3002" * 9)
    answer = ralm("eval", tmp_path / "text.txt", "--lm", "ralm-tiny", "--out", tmp_path / "run")
    assert answer.status == 0, answer.err
    assert math.isnan(perplexity_by_spaces(tmp_path / "run").estimate.value)

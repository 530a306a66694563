"""Both papers' orders on real models: texts, questions and multiple choice, each row a `ralm` command with a folder.

    python -m benchmarks.real_models MODELS [--out real-models] [--rows GLOB] [--scale small|wide|full] [--report]

MODELS is a folder of transformers folders, such as those of SmolLM2-135M-Instruct and Gemma 3 270M. Runs the rows of
`benchmarks.real_rows` whose names match, those worth most first; a row with a complete folder is skipped, and one that
was interrupted resumes. Then prints the report: tables of all rows that are there, and the papers' orders with paired
95% intervals. Rows of one model share its scores, as in `ralm recipe`: the seconds of a row are those that it took
beyond earlier rows. Texts, seconds and memory are of this machine.
"""

import argparse
import io
import json
import resource
import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stdout
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from benchmarks.real_rows import (
    CHOICE_ORDERS,
    DOCUMENT,
    MIXER_ORDERS,
    QUESTION_ORDERS,
    SCALES,
    TEXT_ORDERS,
    TEXTS,
    Order,
    Row,
    prepare,
    rows,
)
from ralm.answering.compare import AnswersComparison, compare_answers
from ralm.cli import program
from ralm.cli.models import release_models, sharing_models
from ralm.cli.output import with_interval
from ralm.evaluation.intervals import LEVEL, Estimate, holm
from ralm.runs.compare import compare_runs

RUNS: Final = Path("runs")
_COSTS: Final = Path("costs")
_SHOWN: Final = {
    "exact_match": "exact match",
    "contains": "contained",
    "f1": "F1",
    "gold_log_prob": "gold answer, nats a token",
    "accuracy": "accuracy",
}
"""Measures of answers and choices, with the headings of their columns."""
_DECIDES: Final = ("contains", "gold_log_prob", "accuracy")
"""The measures by which orders of questions and choices are judged."""


def run_rows(
    wanted: Sequence[Row], indexes: Mapping[str, Sequence[str]], perform: Callable[[Sequence[str]], None]
) -> None:
    """Run the rows that are not complete, one after another, and record the seconds and the memory of each; `indexes`
    are the commands that make the indexes, which are made when a row needs them."""
    for number, row in enumerate(wanted, 1):
        out = RUNS / row.name
        if out.exists():
            continue
        print(f"[{number}/{len(wanted)}] ralm {shlex.join(row.line)} --out {out}", flush=True)
        for index in [one for one in row.line if one in indexes and not Path(one).exists()]:
            perform([*indexes[index], "--out", index])
        out.parent.mkdir(parents=True, exist_ok=True)
        began, used = time.perf_counter(), time.process_time()
        perform([*row.line, "--out", str(out)])
        cost = {
            "seconds": time.perf_counter() - began,
            "processor_seconds": time.process_time() - used,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        path = _COSTS / f"{row.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(cost), encoding="utf-8")


def perform(line: Sequence[str]) -> None:
    """Run a command of `ralm` in this process; models stay open if the next command may need them."""
    release_models(needed=line)
    with redirect_stdout(io.StringIO()):
        program()([*line], standalone_mode=False)


def report(wanted: Sequence[Row]) -> Iterator[str]:
    """The lines of the report: a table for each model and material, the orders, and the commands."""
    done = [row for row in wanted if (RUNS / row.name / "manifest.json").exists()]
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for row in sorted(done, key=lambda row: row.name.split("/")[:2]):
        group, _, how = row.name.rpartition("/")
        groups[group].append(how)
    orders = []
    for group, hows in groups.items():
        if group.split("/")[1] in TEXTS:
            yield from _text_table(group, hows)
            orders += [*_text_orders(group, hows)]
        else:
            yield from _answer_table(group, hows)
            orders += [*_answer_orders(group, hows)]
    yield from (
        "## Orders",
        "",
        "| model, material | order | source | measure | change | verdict |",
        "|---|---|---|---|---|---|",
    )
    p_values = holm([improvement.p_value for _, improvement in orders])
    for (cells, improvement), p_value in zip(orders, p_values, strict=True):
        yield f"| {cells} | {_verdict(improvement, p_value)} |"
    yield from (
        "",
        "## Commands",
        "",
        *(f"- `{row.name}`: `ralm {shlex.join(row.line)}`{_cost(row.name)}" for row in done),
    )


def _folders(group: str, hows: Sequence[str]) -> list[Path]:
    return [RUNS / group / how for how in hows]


def _text_table(group: str, hows: Sequence[str]) -> Iterator[str]:
    """Perplexities, and the changes against the first row."""
    if len(hows) < 2:
        return
    found = compare_runs(_folders(group, hows), documents=DOCUMENT)
    yield from (f"## {group}: {found.units} documents, {found.targets:,} targets", "")
    yield from (f"| read with | token perplexity | against {hows[0]} |", "|---|---|---|")
    for how, run in zip(hows, found.runs, strict=True):
        change = "" if run.change is None else with_interval(run.change, "+.1%")
        yield f"| {how} | {run.token_perplexity.value:.2f} | {change} |"
    yield ""


def _text_orders(group: str, hows: Sequence[str]) -> Iterator[tuple[str, Estimate]]:
    for order in _given(TEXT_ORDERS, hows):
        _, run = compare_runs(_folders(group, [order.worse, order.better]), documents=DOCUMENT).runs
        assert run.change is not None
        yield _order(group, order, "perplexity", with_interval(run.change, "+.1%"), run.change.times(-1))


def _answer_table(group: str, hows: Sequence[str]) -> Iterator[str]:
    """Measures of answers or choices, each with its interval."""
    found = compare_answers(_folders(group, hows))
    shown = [name for name in _SHOWN if name in found.measures]
    yield from (f"## {group}: {found.questions} questions", "")
    headings = ["read with", "passages hold an answer", *(_SHOWN[name] for name in shown)]
    yield from (f"| {' | '.join(headings)} |", "|---" * len(headings) + "|")
    for place, how in enumerate(hows):
        cells = [how, _has_answer(group, how), *(_measure(name, found.measures[name][place]) for name in shown)]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _has_answer(group: str, how: str) -> str:
    """The share of questions with an answer in one of the passages that are read."""
    summary: Any = json.loads((RUNS / group / how / "summary.json").read_bytes())
    shares = [*summary.get("has_answer", {}).values()]
    return f"{shares[-1]:.0%}" if shares else ""


def _answer_orders(group: str, hows: Sequence[str]) -> Iterator[tuple[str, Estimate]]:
    for order in _given((*QUESTION_ORDERS, *MIXER_ORDERS, *CHOICE_ORDERS), hows):
        found: AnswersComparison = compare_answers(_folders(group, [order.worse, order.better]))
        for name in _DECIDES:
            if name in found.differences:
                change = found.differences[name][1]
                yield _order(group, order, _SHOWN[name], _measure(name, change, sign="+"), change)


def _given(orders: Sequence[Order], hows: Sequence[str]) -> list[Order]:
    return [one for one in orders if one.better in hows and one.worse in hows]


def _order(group: str, order: Order, measure: str, change: str, improvement: Estimate) -> tuple[str, Estimate]:
    """The cells of a row of the table of orders, and the improvement that decides it."""
    return f"{group} | {order.better} over {order.worse} | {order.source} | {measure} | {change}", improvement


def _verdict(improvement: Estimate, p_value: float | None) -> str:
    """Whether an order is seen, at a level of 5% over all orders of the table (Holm)."""
    if p_value is None:
        return "no interval"
    return "not clear" if p_value > LEVEL else "seen" if improvement.value > 0 else "the other way"


def _measure(name: str, figure: Estimate, sign: str = "") -> str:
    return with_interval(figure, f"{sign}.2f" if name == "gold_log_prob" else f"{sign}.0%")


def _cost(name: str) -> str:
    path = _COSTS / f"{name}.json"
    if not path.exists():
        return ""
    cost: Any = json.loads(path.read_bytes())
    return f" ({cost['processor_seconds']:.0f} processor seconds, peak {cost['peak_mb']:,.0f} MB)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("--out", type=Path, default=Path("real-models"))
    parser.add_argument("--rows", default="*")
    parser.add_argument("--scale", choices=sorted(SCALES), default="small")
    parser.add_argument("--report", action="store_true", help="run nothing")
    given = parser.parse_args()
    found = rows(given.models.resolve(), SCALES[given.scale])
    given.out.mkdir(parents=True, exist_ok=True)
    with chdir(given.out), sharing_models():
        if not given.report:
            wanted = [row for row in found if fnmatch(row.name, given.rows)]
            run_rows(wanted, dict(prepare(SCALES[given.scale])), perform)
        print("\n".join(report(found)))


if __name__ == "__main__":
    main()

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
    MIXER_ORDERS,
    QUESTION_ORDERS,
    SCALES,
    TEXT_ORDERS,
    Order,
    Row,
    prepare,
    rows,
)
from ralm.cli import program
from ralm.cli.models import release_models, sharing_models
from ralm.cli.output import with_interval
from ralm.evaluation.intervals import LEVEL, Estimate, holm
from ralm.runs.units import compare_runs

RUNS: Final = Path("runs")
_COSTS: Final = Path("costs")
_SHOWN: Final = {
    "token_perplexity": ".2f",
    "exact_match": ".0%",
    "contains": ".0%",
    "f1": ".0%",
    "gold_log_prob": ".2f",
}
"""Measures with a column, with the form of a figure."""
_DECIDES: Final = ("token_perplexity", "contains", "gold_log_prob", "accuracy")
"""The measures by which orders are judged."""


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
        yield from _table(group, hows)
        orders += [*_orders(group, hows)]
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


def _table(group: str, hows: Sequence[str]) -> Iterator[str]:
    """The measures of every row, and the changes of perplexities against the first."""
    compared = compare_runs([RUNS / group / how for how in hows])
    shown = {name: form for name, form in {**_SHOWN, "accuracy": ".0%"}.items() if name in compared.figures}
    yield from (f"## {group}: {compared.units} {compared.noun}", "")
    headings = ["read with", "has answer", *(name.replace("_", " ") for name in shown), f"against {hows[0]}"]
    yield from (f"| {' | '.join(headings)} |", "|---" * len(headings) + "|")
    for place, how in enumerate(hows):
        estimates = compared.estimates(place)
        cells = [how, _percent(estimates.get("has_answer"))]
        cells += [with_interval(estimates[name], form) for name, form in shown.items()]
        change = estimates.get("token_perplexity_from_first")
        yield f"| {' | '.join([*cells, '' if change is None else with_interval(change, '+.1%')])} |"
    yield ""


def _percent(share: Estimate | None) -> str:
    return "" if share is None else f"{share.value:.0%}"


def _orders(group: str, hows: Sequence[str]) -> Iterator[tuple[str, Estimate]]:
    """The orders of a group with the measures that decide them: the cells of each, and its improvement."""
    for order in _given((*TEXT_ORDERS, *QUESTION_ORDERS, *MIXER_ORDERS, *CHOICE_ORDERS), hows):
        compared = compare_runs([RUNS / group / order.worse, RUNS / group / order.better])
        for name in _DECIDES:
            if name in compared.changes:
                change, is_perplexity = compared.changes[name][1], name == "token_perplexity"
                form = "+.1%" if is_perplexity else "+.2f" if name == "gold_log_prob" else "+.0%"
                cells = [group, f"{order.better} over {order.worse}", order.source, name.replace("_", " ")]
                yield " | ".join([*cells, with_interval(change, form)]), change.times(-1 if is_perplexity else 1)


def _given(orders: Sequence[Order], hows: Sequence[str]) -> list[Order]:
    return [one for one in orders if one.better in hows and one.worse in hows]


def _verdict(improvement: Estimate, p_value: float | None) -> str:
    """Whether an order is seen, at a level of 5% over all orders of the table (Holm)."""
    if p_value is None:
        return "no interval"
    return "not clear" if p_value > LEVEL else "seen" if improvement.value > 0 else "the other way"


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

"""Both papers' orders on real models: texts, questions and multiple choice, each row a `ralm` command with a folder.

    python -m benchmarks.real_models MODELS [--out real-models] [--rows GLOB] [--scale small|full] [--report]

MODELS is a folder of transformers folders, such as those of SmolLM2-135M-Instruct and Gemma 3 270M. Runs the rows of
`benchmarks.real_rows` whose names match, those worth most first; a row with a complete folder is skipped, and one that
was interrupted resumes. Then prints the report: `ralm report` of all rows that are there, and the papers' orders with
paired 95% intervals. Rows of one model share its scores, as in `ralm recipe`.
"""

import argparse
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stdout
from fnmatch import fnmatch
from io import StringIO
from pathlib import Path
from typing import Final

from benchmarks.measuring import print_table
from benchmarks.real_rows import ORDERS, SCALES, Row, prepare, rows
from ralm.cli import program
from ralm.cli.output import with_interval
from ralm.cli.process import release_models, sharing_models
from ralm.evaluation.intervals import LEVEL, Estimate, holm
from ralm.runs.run import compare_runs

RUNS: Final = Path("runs")
_DECIDES: Final = {"token_perplexity": "+.1%", "contains": "+.0%", "gold_log_prob": "+.2f", "accuracy": "+.0%"}
"""The measures by which orders are judged, with the form of a change."""


def run_rows(asked: Sequence[Row], indexes: Mapping[str, str]) -> None:
    """Run the rows that are not complete; `indexes` are the commands of the indexes, made when a row needs them."""
    for number, row in enumerate(asked, 1):
        out = RUNS / row.name
        if out.exists():
            continue
        print(f"[{number}/{len(asked)}] ralm {row.line} --out {out}", flush=True)
        for index in [word for word in shlex.split(row.line) if word in indexes and not Path(word).exists()]:
            perform(f"{indexes[index]} --out {shlex.quote(index)}")
        out.parent.mkdir(parents=True, exist_ok=True)
        perform(f"{row.line} --out {shlex.quote(str(out))}")


def perform(line: str) -> None:
    """Run a command of `ralm` in this process; models stay open if the next command may need them."""
    release_models(needed=shlex.split(line))
    with redirect_stdout(StringIO()):
        program()(shlex.split(line), standalone_mode=False)


def print_report(asked: Sequence[Row]) -> None:
    """Print the comparison of the rows of each model and material, the orders, and the commands."""
    done = [row for row in asked if (RUNS / row.name / "manifest.json").exists()]
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for row in done:
        group, _, how = row.name.rpartition("/")
        groups[group].append(how)
    for group, hows in groups.items():
        print(f"\n{group}", flush=True)
        program()(["report", *(str(RUNS / group / how) for how in hows)], standalone_mode=False)
    judged = [order for group, hows in groups.items() for order in _orders(group, hows)]
    p_values = holm([improvement.p_value for _, improvement in judged])
    pairs = zip(judged, p_values, strict=True)
    print_table({**cells, "verdict": _verdict(improvement, p_value)} for (cells, improvement), p_value in pairs)
    print("\n".join(f"{row.name}: ralm {row.line}" for row in done))


def _orders(group: str, hows: Sequence[str]) -> Iterator[tuple[dict[str, object], Estimate]]:
    """Yield the orders of a group with each measure that decides them, and its improvement."""
    for order in ORDERS:
        if order.better not in hows or order.worse not in hows:
            continue
        compared = compare_runs([RUNS / group / order.worse, RUNS / group / order.better])
        for name in _DECIDES.keys() & compared.changes.keys():
            change = compared.changes[name][1]
            cells: dict[str, object] = {"model, material": group, "order": f"{order.better} over {order.worse}"}
            cells |= {"source": order.source, "measure": name.replace("_", " ")}
            cells["change"] = with_interval(change, _DECIDES[name])
            yield cells, change.times(-1 if name == "token_perplexity" else 1)


def _verdict(improvement: Estimate, p_value: float | None) -> str:
    """Return whether an order is seen, at a level of 5% over all orders of the table (Holm)."""
    if p_value is None:
        return "no interval"
    return "not clear" if p_value > LEVEL else "seen" if improvement.value > 0 else "the other way"


def main() -> None:
    """Run the rows and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("--out", type=Path, default=Path("real-models"))
    parser.add_argument("--rows", default="*")
    parser.add_argument("--scale", choices=sorted(SCALES), default="small")
    parser.add_argument("--report", action="store_true", help="run nothing")
    args = parser.parse_args()
    every = rows(args.models.resolve(), SCALES[args.scale])
    args.out.mkdir(parents=True, exist_ok=True)
    with chdir(args.out), sharing_models():
        if not args.report:
            run_rows([row for row in every if fnmatch(row.name, args.rows)], dict(prepare(SCALES[args.scale])))
        print_report(every)


if __name__ == "__main__":
    main()

"""A report of everything that needs a GPU: its answers against the processor's and the papers' programs, and its speed.

    python -m benchmarks.gpu [--out gpu-report] [--only NAME ...] [--list]

Runs the steps below one after another, each in a process of its own with a limit of time, and writes `report.md` and
`report.json` with the names of the card and of the versions. A step that fails does not stop those after it; the exit
status is 1 if one failed. Without a GPU, or with `--list`, it prints the steps and runs nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import torch

_SHOWN_LINES: Final = 40
_TESTS: Final = (
    "-m",
    "pytest",
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:benchmark",
    "-m",
    "campaign or not campaign",
    "--timeout",
    "600",
)
_WORKERS: Final = max(1, min(8, (os.cpu_count() or 1) // 2))
"""Each holds a context of its own on the GPU, some 500 MB."""


@dataclass(frozen=True, slots=True)
class Step:
    """A program with its arguments, the seconds that it may take, and what it shows."""

    name: str
    shows: str
    seconds: int
    command: tuple[str, ...]


STEPS: Final = (
    Step(
        "agreement",
        "families, number formats, memory that is too small, encoders, training and commands, against the processor",
        600,
        (*_TESTS, "-n", str(_WORKERS), "tests/test_gpu.py"),
    ),
    Step(
        "golden",
        "figures of both papers' official programs",
        300,
        (*_TESTS, "-n", str(_WORKERS), "tests/test_against_reference.py", "tests/test_replug_golden.py"),
    ),
    Step(
        "scoring 124M",
        "GPT-2 124M against the plain loop, share of the card's peak",
        120,
        ("-m", "benchmarks.scoring", "--model", "gpt2", "--strides", "256"),
    ),
    Step(
        "scoring 1.5B",
        "the shape of GPT-2 XL in bfloat16, the same",
        240,
        ("-m", "benchmarks.scoring", "--model", "gpt2-xl", "--strides", "256", "--dtype", "bfloat16"),
    ),
    Step(
        "scoring 7B",
        "the shape of LLaMA 7B in bfloat16, the same",
        400,
        ("-m", "benchmarks.scoring", "--model", "llama-7b", "--strides", "128", "--dtype", "bfloat16"),
    ),
    Step(
        "generation",
        "ensembles of ten for 1 and 32 prompts against transformers' plain generation, GPT-2 124M in bfloat16",
        300,
        ("-m", "benchmarks.generation", "--dtypes", "bfloat16"),
    ),
    Step(
        "serving",
        "64 clients of `ralm serve` with GPT-2 124M against one after another, time to the first token",
        400,
        (
            *("-m", "benchmarks.serving", "--models", "gpt2", "--documents", "0", "1", "10", "--strides", "64"),
            *("--clients", "64", "--requests", "128"),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step went: its exit status, None if it ran out of time; seconds; and all that it printed."""

    name: str
    status: int | None
    seconds: float
    output: str


def run(step: Step) -> Outcome:
    """Run a step, with tests on the GPU."""
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, *step.command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=step.seconds,
            env=os.environ | {"RALM_TEST_GPU": "1"},
        )
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        status, output = None, late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else ""
    return Outcome(step.name, status, round(time.perf_counter() - begin, 1), output)


def machine() -> dict[str, str]:
    """The card and the versions that decide the figures."""
    properties = torch.cuda.get_device_properties(0)
    found = {"card": properties.name, "memory": f"{properties.total_memory / 2**30:.0f} GiB"}
    found |= {"cards": str(torch.cuda.device_count()), "CUDA": str(torch.version.cuda)}
    for package in ("torch", "transformers", "ralm"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # it runs from a checkout
            continue
    return found


def markdown(facts: dict[str, str], outcomes: list[Outcome]) -> str:
    """The report as a page."""
    steps = {step.name: step for step in STEPS}
    lines = ["# GPU report", "", ", ".join(f"{name}: {value}" for name, value in facts.items()), ""]
    lines += ["| step | shows | result | seconds |", "| --- | --- | --- | --- |"]
    for one in outcomes:
        result = {None: "out of time", 0: "passed"}.get(one.status, f"failed ({one.status})")
        lines.append(f"| {one.name} | {steps[one.name].shows} | {result} | {one.seconds} |")
    for one in outcomes:
        lines += ["", f"## {one.name}", "", "```text", *one.output.splitlines()[-_SHOWN_LINES:], "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-report"))
    parser.add_argument("--only", nargs="+", choices=[step.name for step in STEPS])
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    steps = [step for step in STEPS if args.only is None or step.name in args.only]
    if args.list or not torch.cuda.is_available():
        print("Steps:" if args.list else "No GPU is available here. With one, these steps run:")
        for step in steps:
            print(f"- {step.name}: {step.shows} (at most {step.seconds} s)\n    python {' '.join(step.command)}")
        return
    args.out.mkdir(parents=True, exist_ok=True)
    facts, outcomes = machine(), []
    print(", ".join(facts.values()), flush=True)
    for step in steps:
        outcomes.append(run(step))
        print(f"{step.name}: status {outcomes[-1].status}, {outcomes[-1].seconds} s", flush=True)
        (args.out / "report.md").write_text(markdown(facts, outcomes))
        (args.out / "report.json").write_text(
            json.dumps({"machine": facts, "steps": [asdict(one) for one in outcomes]}, indent=1)
        )
    sys.exit(any(one.status != 0 for one in outcomes))


if __name__ == "__main__":
    main()

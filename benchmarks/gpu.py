"""A report of everything that needs a GPU: its answers against the processor's and the papers' programs, and its speed.

    python -m benchmarks.gpu [--out gpu-report] [--only NAME ...] [--list]

Runs the steps below one after another, each in a process of its own with a limit of time, and writes `report.md` with
the names of the card and of the versions. A step that fails does not stop those after it; the exit status is 1 if one
failed. Without a GPU, or with `--list`, it prints the steps and runs nothing.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple

import torch

_SHOWN_LINES: Final = 40
_WORKERS: Final = max(1, min(8, (os.cpu_count() or 1) // 2))
"""Each holds a context of its own on the GPU, some 500 MB."""
_TESTS: Final = (
    f"pytest -q -p no:cacheprovider -p no:benchmark -m 'campaign or not campaign' --timeout 600 -n {_WORKERS} tests/"
)


class Step(NamedTuple):
    """A module of Python with its arguments, the seconds that it may take, and what it shows."""

    name: str
    seconds: int
    command: str
    shows: str


STEPS: Final = (
    Step(
        "agreement",
        600,
        f"{_TESTS}test_gpu.py",
        "families, number formats, memory that is too small, encoders, training and commands, against the processor",
    ),
    Step(
        "golden",
        300,
        f"{_TESTS}test_against_reference.py tests/test_replug_golden.py",
        "figures of both papers' official programs",
    ),
    Step(
        "scoring 124M",
        120,
        "benchmarks.scoring --model gpt2 --strides 256",
        "GPT-2 124M against the plain loop, share of the card's peak",
    ),
    Step(
        "scoring 1.5B",
        240,
        "benchmarks.scoring --model gpt2-xl --strides 256 --dtype bfloat16",
        "the shape of GPT-2 XL in bfloat16, the same",
    ),
    Step(
        "scoring 7B",
        400,
        "benchmarks.scoring --model llama-7b --strides 128 --dtype bfloat16",
        "the shape of LLaMA 7B in bfloat16, the same",
    ),
    Step(
        "generation",
        300,
        "benchmarks.generation --dtypes bfloat16",
        "ensembles of ten for 1 and 32 prompts against transformers' plain generation, GPT-2 124M in bfloat16",
    ),
    Step(
        "serving",
        400,
        "benchmarks.serving.batching --models gpt2 --documents 0 1 10 --strides 64 --clients 64 --requests 128",
        "64 clients of `ralm serve` with GPT-2 124M against one after another, time to the first token",
    ),
)


def run(step: Step) -> tuple[str, str]:
    """Run a step, with tests on the GPU; return how it ended, and all that it printed."""
    begin = time.perf_counter()
    try:
        ended = subprocess.run(
            [sys.executable, "-m", *shlex.split(step.command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=step.seconds,
            env=os.environ | {"RALM_TEST_GPU": "1"},
        )
        status, output = f"failed ({ended.returncode})" if ended.returncode else "passed", ended.stdout
    except subprocess.TimeoutExpired as late:
        status, output = "out of time", late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else ""
    return f"{status} | {time.perf_counter() - begin:.0f}", output


def machine() -> str:
    """Return the card and the versions that decide the figures."""
    card = torch.cuda.get_device_properties(0)
    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "transformers"))
    return (
        f"{torch.cuda.device_count()} x {card.name}, {card.total_memory / 2**30:.0f} GiB, "
        f"CUDA {torch.version.cuda}, {versions}"
    )


def main() -> None:
    """Run the steps and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-report"))
    parser.add_argument("--only", nargs="+", choices=[step.name for step in STEPS])
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    steps = [step for step in STEPS if args.only is None or step.name in args.only]
    if args.list or not torch.cuda.is_available():
        print("Steps:" if args.list else "No GPU is available here. With one, these steps run:")
        for step in steps:
            print(f"- {step.name}: {step.shows} (at most {step.seconds} s)\n    python -m {step.command}")
        return
    args.out.mkdir(parents=True, exist_ok=True)
    head = ["# GPU report", "", machine(), "", "| step | shows | result | seconds |", "|---|---|---|---|"]
    outputs: list[str] = []
    failed = False
    for step in steps:
        result, output = run(step)
        failed |= not result.startswith("passed")
        print(f"{step.name}: {result} s", flush=True)
        head.append(f"| {step.name} | {step.shows} | {result} |")
        outputs += ["", f"## {step.name}", "", "```text", *output.splitlines()[-_SHOWN_LINES:], "```"]
        (args.out / "report.md").write_text("\n".join([*head, *outputs]) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()

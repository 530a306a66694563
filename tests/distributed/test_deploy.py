"""The script that makes a cluster of a job of Slurm, as far as it can be checked where there is no cluster."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ray.scripts.scripts import cli as ray_cli

from tests.cli.program import ralm

SLURM = Path(__file__).parents[2] / "docs" / "deploy" / "slurm.sh"
COMMAND = ["eval", "/shared/my text.txt", "--lm", "ralm-tiny", "--lm-args", "ray=auto", "--out", "/shared/my-run"]
OTHERS = ["machine2", "machine3"]
"""The machines but the first."""


def is_understood_by_ray(command: str, words: list[str]) -> bool:
    """Whether the program `ray` has a command with these options; otherwise click raises an error."""
    ray_cli.commands[command].make_context(command, [*words])
    return True


def run_on_slurm(folder: Path, port: int, *command: str, **environment: str) -> tuple[int, list[list[str]]]:
    """Run the script with fake programs; its status, and what they wrote down."""
    programs, log = folder / "programs", folder / "log"
    programs.mkdir()
    log.touch()
    text = Path(__file__).with_name("fake_slurm.py").read_text()
    for name in ("scontrol", "srun", "ray", "ralm"):
        (programs / name).write_text(f"#!{sys.executable} -S\n{text}")
        (programs / name).chmod(0o755)
    told = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "LOG": str(log),
        "MACHINES": " ".join(["localhost", *OTHERS]),
        "RALM_STATUS": "0",
        "SLURM_JOB_NODELIST": "machine[1-3]",
        "SLURM_CPUS_PER_TASK": "16",
        "RAY_PORT": str(port),
    }
    done = subprocess.run(["bash", str(SLURM), *command], env=os.environ | told | environment, timeout=120, check=False)
    return done.returncode, [json.loads(line) for line in log.read_text().splitlines()]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.usefixtures("no_cluster")
def test_the_script_of_slurm(status: int, tmp_path: Path) -> None:
    port = free_port()
    found, told = run_on_slurm(tmp_path, port, *COMMAND, RALM_STATUS=str(status))
    assert found == status
    assert told[0] == ["scontrol", "show", "hostnames", "machine[1-3]"]
    steps = [words for words in told if words[0] == "srun"]
    on = [(*words[:3], words[4]) for words in steps]
    assert on == [("srun", "--nodes=1", "--ntasks=1", "--cpus-per-task=16")] * (1 + len(OTHERS))
    first, *others = [words[3] for words in steps]
    assert first == "--nodelist=localhost"
    assert sorted(others) == [f"--nodelist={machine}" for machine in OTHERS]
    head, *workers = [words for words in told if words[0] == "ray"]
    start = ["ray", "start", "--num-cpus=16", "--block"]
    assert told[2] == head == [*start, "--head", f"--port={port}", "--include-dashboard=false"]
    assert workers == [[*start, f"--address=localhost:{port}"]] * len(OTHERS)
    (job,) = [words for words in told if words[0] == "ralm"]
    assert job == ["ralm", *COMMAND]
    ended = [place for place, words in enumerate(told) if words[0] == "ended"]
    assert len(ended) == 1 + len(OTHERS)
    assert told.index(job) < ended[0]
    ((_, mode, token),) = {tuple(words) for words in told if words[0] == "token"}
    assert (mode, len(token)) == ("token", 64)
    for words in (head, *workers):
        assert is_understood_by_ray("start", words[2:])
    (tmp_path / "my text.txt").write_text("whales sing")
    answer = ralm(*(word.replace("/shared", str(tmp_path)) for word in job[1:]))
    assert answer.err.startswith("ralm: there is no Ray cluster")


def test_a_head_that_does_not_start_ends_the_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status, told = run_on_slurm(tmp_path, free_port(), *COMMAND, NO_HEAD="1")
    assert status == 1
    assert [words[0] for words in told] == ["scontrol", "srun", "ray", "token"]
    assert capfd.readouterr().err.endswith("Ray did not start on localhost.\n")


def test_a_job_without_a_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status, told = run_on_slurm(tmp_path, free_port())
    assert (status, told) == (1, [])
    assert "give a command of ralm" in capfd.readouterr().err


def test_the_options_for_sbatch_stand_before_all_commands() -> None:
    """sbatch reads no further than to the first command."""
    lines = SLURM.read_text().splitlines()
    first = next(place for place, line in enumerate(lines) if line and not line.startswith("#"))
    options = [place for place, line in enumerate(lines) if line.startswith("#SBATCH ")]
    assert options
    assert max(options) < first

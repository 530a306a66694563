"""The files with which a cluster is made (docs/deploy): as far as they can be checked where there is no cluster."""

import copy
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.scripts.scripts import cli as ray_cli

from ralm.version import __version__
from tests.cli.program import ralm

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
SLURM = DEPLOY / "slurm.sh"
AWS = DEPLOY / "ray-up-aws.yaml"
KUBERNETES = DEPLOY / "kubernetes.yaml"
COMMAND = ["index", "/shared/my documents", "--out", "/shared/my-index", "--shards", "4"]
OTHERS = ["machine2", "machine3"]
"""The machines but the first."""
KEYS_OF_A_JOB = {"entrypoint", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "backoffLimit", "rayClusterSpec"}
KEYS_OF_A_CLUSTER = {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
KEYS_OF_A_HEAD = {"rayStartParams", "template"}
KEYS_OF_WORKERS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
"""Of those that KubeRay defines (`rayjob_types.go`, `raycluster_types.go`), those that we use."""


def is_understood_by_ray(command: str, words: list[str]) -> bool:
    """Whether the program `ray` has a command with these options; otherwise click raises an error."""
    ray_cli.commands[command].make_context(command, [*words])
    return True


def is_understood_by_ralm(words: list[str], folder: Path) -> bool:
    """Whether `ralm` takes a command up to the point where it needs a cluster."""
    for name in ("my-documents", "my documents"):
        (folder / name).mkdir()
        (folder / name / "sea.txt").write_text("whales sing")
    answer = ralm(*(word.replace("/shared", str(folder)) for word in words))
    return answer.err.startswith("ralm: there is no Ray cluster")


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
    assert job == ["ralm", *COMMAND, "--ray", f"localhost:{port}"]
    ended = [place for place, words in enumerate(told) if words[0] == "ended"]
    assert len(ended) == 1 + len(OTHERS)
    assert told.index(job) < ended[0]
    ((_, mode, token),) = {tuple(words) for words in told if words[0] == "token"}
    assert (mode, len(token)) == ("token", 64)
    for words in (head, *workers):
        assert is_understood_by_ray("start", words[2:])
    assert is_understood_by_ralm(job[1:], tmp_path)


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


def test_the_configuration_for_ray_up_fits_the_schema_of_ray() -> None:
    config = yaml.safe_load(AWS.read_text())
    validate_config(prepare_config(copy.deepcopy(config)))
    with pytest.raises(Exception, match="setup_command"):
        validate_config(prepare_config({**config, "setup_command": []}))


def test_the_machines_of_aws_share_a_disk_and_their_versions() -> None:
    config = yaml.safe_load(AWS.read_text())
    assert (config["head_setup_commands"], config["worker_setup_commands"]) == ([], [])
    setup = "\n".join(config["setup_commands"])
    assert re.search(r"mount -t nfs4 .*:/ /shared\b", setup)
    assert f"'ralm[ray]=={__version__}'" in setup
    head, worker = (config["available_node_types"][name]["node_config"] for name in ("head", "worker"))
    assert {**worker, "InstanceMarketOptions": None} == {**head, "InstanceMarketOptions": None}
    assert "ImageId" in head  # what Ray takes without one has Python 3.6


def test_the_commands_of_ray_up_exist() -> None:
    config = yaml.safe_load(AWS.read_text())
    for name in ("head", "worker"):
        for line in config[f"{name}_start_ray_commands"]:
            words = shlex.split(line.rpartition("ray ")[2])
            assert is_understood_by_ray(words[0], words[1:]), line
    assert "--head" in config["head_start_ray_commands"][-1]
    assert "--address=$RAY_HEAD_IP:6379" in config["worker_start_ray_commands"][-1]


@pytest.mark.usefixtures("no_cluster")
def test_the_commands_of_the_example_for_aws(tmp_path: Path) -> None:
    written = [line[1:].strip() for line in AWS.read_text().splitlines() if line.startswith("#     ray ")]
    commands = [shlex.split(line)[1:] for line in written]
    assert [words[0] for words in commands] == ["up", "rsync-up", "exec", "down"]
    for name, *words in commands:
        assert words[0] == AWS.name
        assert is_understood_by_ray(name, [str(AWS), *words[1:]])
    (job,) = [shlex.split(words[-1]) for words in commands if words[0] == "exec"]
    assert job[0] == "~/ralm/bin/ralm"
    assert is_understood_by_ralm(job[1:], tmp_path)


@pytest.mark.usefixtures("no_cluster")
def test_the_manifest_for_kubernetes(tmp_path: Path) -> None:
    claim, job = yaml.safe_load_all(KUBERNETES.read_text())
    assert (claim["apiVersion"], claim["kind"]) == ("v1", "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]
    assert spec.keys() == KEYS_OF_A_JOB
    cluster = spec["rayClusterSpec"]
    assert cluster.keys() == KEYS_OF_A_CLUSTER
    head, (workers,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert head.keys() == KEYS_OF_A_HEAD
    assert workers.keys() == KEYS_OF_WORKERS
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    for group in (head, workers):
        assert is_understood_by_ray("start", [f"--{name}={value}" for name, value in group["rayStartParams"].items()])
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    assert machine_of(head, claim) == machine_of(workers, claim)
    entrypoint = shlex.split(spec["entrypoint"])[1:]
    mounted = machine_of(head, claim)[1]
    assert [word for word in entrypoint if "/" in word] == [f"{mounted}/my-documents", f"{mounted}/my-index"]
    assert is_understood_by_ralm(entrypoint, tmp_path)


def machine_of(group: dict[str, Any], claim: dict[str, Any]) -> tuple[str, str, dict[str, str], Any]:
    """What all machines must have alike: the image, where the shared disk is mounted, the environment, the group."""
    pod = group["template"]["spec"]
    (container,), (volume,), (mount,) = pod["containers"], pod["volumes"], pod["containers"][0]["volumeMounts"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert mount["name"] == volume["name"]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    return container["image"], mount["mountPath"], environment, pod["securityContext"]

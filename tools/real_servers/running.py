"""Servers are installed, started, waited for, and ended. Only traffic to this machine, once they are installed."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from tools.real_servers.gguf_file import write_gguf
from tools.real_servers.servers import Server

ROOT = Path(__file__).parents[2]
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1"}
PATIENCE = 300.0
"""Seconds until a server must answer; vLLM takes a minute."""


class ServerError(Exception):
    """A server that cannot be installed or does not start."""


def install(server: Server, folder: Path) -> Path:
    """The Python of the server's environment in `folder`, which is made if it is not there; raises ServerError."""
    environment = folder / server.name
    python = environment / "bin" / "python"
    finished = environment / "installed"
    wanted = "\n".join(server.packages)
    if finished.exists() and finished.read_text(encoding="utf-8") == wanted:
        return python
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    try:
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        subprocess.run([*pip, "install", *server.packages], check=True, env=_surroundings())
        if server.removed:
            subprocess.run([*pip, "uninstall", "--yes", *server.removed], check=True, env=_surroundings())
    except subprocess.CalledProcessError as error:
        raise ServerError(f"{server.name} could not be installed in {environment}; pip says above why.") from error
    finished.write_text(wanted, encoding="utf-8")
    return python


@contextmanager
def running(server: Server, model: Path, folder: Path) -> Iterator[str]:
    """Serve the model in the folder `model` inside; gives its name for `--lm`, URL#MODEL.

    Installs the server in `folder` if need be; what it prints goes to NAME.log there. Raises ServerError, and
    ModelError if the server needs a GGUF file and the model cannot be written as one.
    """
    python = install(server, folder)
    gguf = folder / f"{model.name}.gguf"
    if server.reads_gguf:
        write_gguf(model, gguf)
    port = _free_port()
    facts = {"folder": str(model.resolve()), "gguf": str(gguf.resolve()), "name": model.name, "port": str(port)}
    log = folder / f"{server.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(python.absolute()), *(argument.format(**facts) for argument in server.arguments)],
            cwd=ROOT,
            env={**_surroundings(), **OFFLINE, **server.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt from the terminal reaches this process alone, which ends the server
        )
    try:
        _wait(server, process, port, log)
        yield f"http://127.0.0.1:{port}/v1#{server.model.format(**facts)}"
    finally:
        _end(process)


def _surroundings() -> dict[str, str]:
    """The variables of this process, without the one that would mix its packages with the server's."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait(server: Server, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Return once the server answers."""
    last = time.monotonic() + PATIENCE
    while not _answers(port, server.ready):
        if process.poll() is not None:
            raise ServerError(f"{server.name} ended with status {process.returncode}; {log} says why.")
        if time.monotonic() > last:
            raise ServerError(f"{server.name} did not answer within {PATIENCE:.0f} s; {log} has what it printed.")
        time.sleep(0.2)


def _answers(port: int, path: str) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server; kill it if it takes too long."""
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

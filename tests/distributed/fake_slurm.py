"""Fake programs for a script of Slurm: each writes down how it is called, and does the least of what the real one does.

Copied under the names `scontrol`, `srun`, `ray` and `ralm`. `LOG` is the file that they write to. `MACHINES` are the
names that `scontrol` lists. `RALM_STATUS` is the status of `ralm`; with `NO_HEAD` the head does not start.
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path


def told() -> list[list[str]]:
    """What was written down so far."""
    return [json.loads(line) for line in Path(os.environ["LOG"]).read_text().splitlines()]


def tell(*words: str) -> None:
    with Path(os.environ["LOG"]).open("a") as log:
        log.write(json.dumps(words) + "\n")


def srun(words: list[str]) -> None:
    """Run the command here, as if this were the other machine."""
    at = next(place for place, word in enumerate(words) if not word.startswith("-"))
    os.execvp(words[at], words[at:])


def ray(words: list[str]) -> None:
    """Run until it is ended; the head answers at its port."""
    if "--head" not in words:
        signal.pause()
    if "NO_HEAD" in os.environ:
        sys.exit(1)
    port = next(word.partition("=")[2] for word in words if word.startswith("--port="))
    with socket.create_server(("localhost", int(port))):
        signal.pause()


def ralm() -> None:
    """End when all processes of Ray have begun."""
    until = time.monotonic() + 60
    while sum(words[0] == "ray" for words in told()) < len(os.environ["MACHINES"].split()):
        assert time.monotonic() < until, told()
        time.sleep(0.02)
    sys.exit(int(os.environ["RALM_STATUS"]))


def ended(*_: object) -> None:
    tell("ended")
    os._exit(0)


def main() -> None:
    name, words = Path(sys.argv[0]).name, sys.argv[1:]
    if name == "ray":
        signal.signal(signal.SIGTERM, ended)
    tell(name, *words)
    if name in ("ray", "ralm"):
        tell("token", os.environ.get("RAY_AUTH_MODE", ""), os.environ.get("RAY_AUTH_TOKEN", ""))
    match name:
        case "scontrol":
            sys.stdout.write("\n".join(os.environ["MACHINES"].split()) + "\n")
        case "srun":
            srun(words)
        case "ray":
            ray(words)
        case "ralm":
            ralm()


if __name__ == "__main__":
    main()

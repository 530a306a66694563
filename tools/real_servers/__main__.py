"""Start real servers of a model and print what `--lm` calls them: `python -m tools.real_servers DIR`."""

import argparse
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from ralm.errors import RalmError
from tools.real_servers.running import ROOT, ServerError, running
from tools.real_servers.servers import SERVERS


def main() -> None:
    """Start the servers, wait for Ctrl-C, and end them."""
    parser = argparse.ArgumentParser(prog="python -m tools.real_servers", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="virtual environments, the GGUF file and logs")
    parser.add_argument(
        "--model", type=Path, default=ROOT / "src/ralm/lm/ralm-tiny", help="the folder of a small model"
    )
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=[*SERVERS], help="which; all by default")
    options = parser.parse_args()
    if not (options.model / "config.json").exists():
        parser.error(f"{options.model} is not a model folder: it has no config.json.")
    options.folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        serve(options.folder, options.model, options.servers)
    except KeyboardInterrupt:
        print("The servers have ended.", file=sys.stderr)
    except (RalmError, ServerError) as error:
        sys.exit(f"error: {error}")


def serve(folder: Path, model: Path, names: list[str]) -> None:
    """Start servers one after the other, print their names, and wait."""
    with ExitStack() as stack:
        for name in names:
            print(f"{name} ...", file=sys.stderr)
            print(f"{name:17} --lm {stack.enter_context(running(SERVERS[name], model, folder))}", flush=True)
        print("Ctrl-C ends them.", file=sys.stderr)
        signal.pause()


if __name__ == "__main__":
    main()

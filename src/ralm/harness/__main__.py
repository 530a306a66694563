"""`python -m ralm.harness`: the program of lm-evaluation-harness, with `--model ralm`."""

import sys

from ralm.errors import RalmError
from ralm.harness import harness_extra
from ralm.terminal import one_line


def run_harness() -> None:
    """Run the harness's command line; an error of ralm is one line."""
    try:
        with harness_extra():
            from lm_eval.__main__ import cli_evaluate

            import ralm.harness.model  # noqa: F401  # registers the model
        cli_evaluate()
    except RalmError as error:
        sys.stderr.write(f"ralm: {one_line(str(error))}\n")
        sys.exit(error.exit_status)


if __name__ == "__main__":
    run_harness()

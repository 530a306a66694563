"""A sweep on disk: a folder with the table of its points, the plot, and the summary.

sweep.csv      a row per value of the option
sweep.png      the plot
summary.json   the rows, each with its configuration
manifest.json  the environment, and a checksum of each file
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv
from pydantic import JsonValue

from ralm.errors import MissingExtraError
from ralm.evaluation.sweep import Sweep
from ralm.runs.run import environment, to_json
from ralm.storage.manifest import write_manifest
from ralm.storage.outputs import new_folder

KIND: Final = "sweep"
FORMAT_VERSION: Final = 1
TABLE: Final = "sweep.csv"
PLOT: Final = "sweep.png"
SUMMARY: Final = "summary.json"
NO_PLOT: Final = ", or give `plot=False`"
"""What a sweep can do without matplotlib."""


def check_plot(instead: str = "") -> None:
    """Raise MissingExtraError if matplotlib is missing; called before hours of work that end with a plot.

    `instead` says what else to do.
    """
    try:
        import ralm.runs.plot  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise MissingExtraError(f"the plot needs the package matplotlib: pip install 'ralm[plots]'{instead}.") from None


def write_sweep(
    out: Path | str, swept: Sweep, configs: Sequence[dict[str, JsonValue]], *, plot: bool = True, force: bool = False
) -> None:
    """Write a folder with the table, its plot and the summary atomically.

    Raises FolderExistsError if `out` exists and `force` is not set, MissingExtraError if `plot` is set and the `plots`
    extra is not installed.
    """
    rows = swept.rows()
    with new_folder(Path(out), kind=KIND, force=force) as folder:
        pyarrow.csv.write_csv(pa.Table.from_pylist(rows), folder / TABLE)
        if plot:
            check_plot(NO_PLOT)
            from ralm.runs.plot import draw_sweep

            draw_sweep(swept.option, rows, folder / PLOT)
        (folder / SUMMARY).write_text(to_json(swept.summary(configs), indent=2) + "\n", encoding="utf-8")
        write_manifest(
            folder,
            kind=KIND,
            format_version=FORMAT_VERSION,
            settings={"option": swept.option, "environment": environment()},
            counts={"points": len(rows), "requests": swept.requests, "scored": swept.scored},
        )

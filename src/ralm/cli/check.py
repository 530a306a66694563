"""`ralm check`: whether an index, a run or a sweep is whole, every byte of it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options


def check(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of an index, a run or a sweep.", show_default=False)
    ],
    json: options.Json = False,
) -> None:
    """Read every byte of an index or a run and say what is damaged; the exit status is 1 where anything is.

    Opening one checks all of a small file, and samples of one above 64 MiB. This compares checksums of everything, and
    checks that what the files say fits together.
    """
    from ralm.cli.output import print_json, print_line
    from ralm.runs.check import check_folder

    found = check_folder(folder)
    if json:
        print_json(
            {"folder": str(folder), "kind": found.kind, "damaged": [*found.damaged], "sampled": [*found.sampled]}
        )
    else:
        for damage in found.damaged:
            print_line(damage)
        if not found.damaged:
            print_line(f"{folder}: this {found.kind} is whole")
    if found.sampled:
        sys.stderr.write(
            f"ralm: only samples of {', '.join(found.sampled)} could be compared: this {found.kind} was written before "
            "checksums of whole files were kept\n"
        )
    if found.damaged:
        raise typer.Exit(1)

"""`ralm check`: checks every byte of a folder that ralm wrote."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options


def check(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder of an index, a run, a sweep, signals or a trained model.", show_default=False
        ),
    ],
    json: options.Json = False,
) -> None:
    """Read every byte of a folder that ralm wrote, and report damage. The exit status is 1 if anything is damaged.

    Opening a folder checks small files fully, and samples of files above 64 MiB. This command compares the checksums of
    whole files, and checks that the files are consistent with each other.
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
            "checksums of whole files were stored\n"
        )
    if found.damaged:
        raise typer.Exit(1)

"""`ralm check`: checks every byte of a folder that ralm wrote, or the versions of the installed packages."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ralm.cli import options
from ralm.cli.messages import complain, untested_warning
from ralm.errors import UsageError


def check(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR", help="Folder of an index, a run, a sweep, signals or a trained model.", show_default=False
        ),
    ] = None,
    environment: Annotated[
        bool, typer.Option("--environment", help="Check the versions of Python and of the installed packages instead.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Read every byte of a folder that ralm wrote, and report damage. The exit status is 1 if anything is damaged.

    Opening a folder checks small files fully, and samples of files above 64 MiB. This command compares the checksums of
    whole files, and checks that the files are consistent with each other.

    `--environment` lists the packages whose installed versions are not between the lowest and the newest that ralm was
    tested with. The exit status is 1 if there are any.
    """
    if environment == (folder is not None):
        raise UsageError("`ralm check` takes a folder or --environment: give one of them.")
    if folder is None:
        _check_environment(json=json)
    else:
        _check_folder(folder, json=json)


def _check_environment(*, json: bool) -> None:
    from ralm.cli.output import print_json, print_line
    from ralm.environment import lock_file, untested_versions

    found = untested_versions()
    if json:
        print_json({"untested": [*found], "locked": str(lock_file())})
    elif not found:
        print_line("all versions are between the lowest and the newest that ralm was tested with")
    else:
        complain(untested_warning(found))
        print_line(f"to install the tested versions: pip install --constraint {lock_file()} 'ralm[all]'")
    if found:
        raise typer.Exit(1)


def _check_folder(folder: Path, *, json: bool) -> None:
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

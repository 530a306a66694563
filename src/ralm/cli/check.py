"""`ralm check` checks folders or installed versions; `ralm probe` reports the capabilities of a model's server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ralm.cli import options
from ralm.cli.flags import Flags
from ralm.cli.process import print_error, untested_warning
from ralm.errors import UsageError
from ralm.lm.api.endpoint import ApiOptions, is_api


def check_command(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR", help="Folder of an index, a run, a sweep, signals or a trained model.", show_default=False
        ),
    ] = None,
    environment: Annotated[
        bool, typer.Option("--environment", help="Check the versions of Python and of the installed packages instead.")
    ] = False,
    json: options.PrintJson = False,
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
        print_error(untested_warning(found))
        print_line(f"to install the tested versions: pip install --constraint {lock_file()} 'ralm[all]'")
    if found:
        raise typer.Exit(1)


def _check_folder(folder: Path, *, json: bool) -> None:
    from ralm.cli.output import print_json, print_line
    from ralm.runs.run import verify_folder

    found = verify_folder(folder)
    if json:
        print_json({"folder": str(folder), "kind": found.kind, "damaged": [*found.damaged]})
    else:
        for damage in found.damaged:
            print_line(damage)
        if not found.damaged:
            print_line(f"{folder}: this {found.kind} is whole")
    if found.damaged:
        raise typer.Exit(1)


if TYPE_CHECKING:
    from ralm.lm.api.model import ApiModel

_API = ApiOptions()


def probe_command(
    lm: Annotated[
        str, typer.Argument(metavar="URL#MODEL", help="Model behind an API; or PROVIDER:MODEL.", show_default=False)
    ],
    api: Annotated[ApiOptions, Flags(without=("dry_run", "requests_at_once"))] = _API,
    json: options.PrintJson = False,
) -> None:
    """Probe a server of a language model: which scores it returns exactly, by bounds, or not at all.

    The server scores and continues a known text in several ways, and its figures must agree with each other. Other
    commands probe on first contact; this one always does, and prints the result.
    """
    if not is_api(lm):
        raise UsageError(f"{lm} is not a model behind an API; write URL#MODEL.")

    from ralm.cli.output import print_json
    from ralm.lm.registry import probe_language_model

    model = probe_language_model(lm, api)
    if json:
        print_json({"name": model.name, **model.capabilities.as_json(), "tier": model.capabilities.tier})
    else:
        _print_capabilities(model)
    model.client.close()


def _print_capabilities(model: "ApiModel") -> None:
    from ralm.cli.output import print_line

    found, backend = model.capabilities, model.backend
    config = found.config
    length = f"{found.max_length:,} tokens" if found.max_length else "not reported; set --context-length"
    print_line(f"{model.name}")
    print_line(f"  tier {found.tier}")
    print_line(f"  backend             {config.backend}, with {'token ids' if config.as_ids else 'text'} as prompts")
    print_line(f"  prompt's log-probs  {'yes' if backend.scores_prompts else 'no'}")
    print_line(f"  chosen tokens       {'yes' if backend.max_chosen else 'no'}")
    print_line(f"  most likely tokens  {config.top_logprobs or 'none'}")
    print_line(f"  BOS                 {'put before text by the server' if config.begin is not None else 'none added'}")
    print_line(f"  reads at once       {length}")
    for what, reason in found.ruled_out:
        print_line(f"  not {what}: {reason}")
    print_line(f"  {model.client.usage.describe()}")

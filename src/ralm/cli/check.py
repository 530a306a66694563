"""`ralm check` checks folders and the installation; `ralm probe` reports the capabilities of a model's server."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import JsonValue

from ralm.cli import flags, options
from ralm.environment import Environment, read_environment
from ralm.errors import UsageError
from ralm.lm.api.endpoint import is_api
from ralm.options import Option


def check_command(
    folder: Annotated[
        Path | None, options.argument("Folder of an index, a run, a sweep, signals or a trained model.", "DIR")
    ] = None,
    environment: Annotated[
        bool, Option("Check the installation: versions, extras and what they lack, device.")
    ] = False,
) -> flags.Output:
    """Read every byte of a folder that ralm wrote, and report damage. The exit status is 1 if anything is damaged.

    Opening a folder reads files up to 64 MiB, and compares the sizes of larger ones. This command reads all files, and
    checks that they are consistent with each other. With --environment, it checks the installation instead, and the
    exit status is 1 if a package is missing that ralm itself needs, or has a version that ralm does not allow.

    Example: `ralm check my-index`
    """
    if environment == (folder is not None):
        raise UsageError("give a folder to check, or `environment`.")

    from ralm.cli.output import print_line
    from ralm.runs.run import verify_folder

    if folder is None:
        installed = read_environment()
        return flags.Output(
            lambda: asdict(installed), partial(_print_environment, installed), status=int(not installed.is_sound)
        )
    kind, damaged = verify_folder(folder)
    shown = partial(print_line, "\n".join(damaged or [f"{folder}: this {kind} is whole"]))
    result: dict[str, JsonValue] = {"folder": str(folder), "kind": kind, "damaged": [*damaged]}
    return flags.Output(lambda: result, shown, status=int(bool(damaged)))


def _print_environment(installed: Environment) -> None:
    from ralm.cli.output import print_line

    print_line(
        f"ralm {installed.ralm}, Python {installed.python}, {installed.platform}, {installed.processors} processors"
    )
    print_line(installed.device or "no torch, so no local models: pip install 'ralm[lm]'")
    print_line(f"extras: {', '.join(installed.extras) or 'none'}")
    for extra, packages in installed.missing.items():
        where = f"ralm[{extra}]" if extra else "ralm"
        if extra != "all":
            print_line(f"{where} lacks {', '.join(packages)}: pip install '{where}'")
    for misfit in sorted({misfit for misfits in installed.misfits.values() for misfit in misfits}):
        print_line(f"another version is needed: {misfit}")


def probe_command(
    lm: Annotated[str, options.argument("Model behind an API; or PROVIDER:MODEL.", "URL#MODEL")],
    model_options: options.Model,
) -> flags.Output:
    """Probe a server of a language model: which scores it returns exactly, by bounds, or not at all.

    The server scores and continues a known text in several ways, and its figures must agree with each other. Other
    commands probe on first contact; this one always does, and prints the result. It also asks for the same figures of a
    new prompt twice, since the prompt caches of servers move them, and prints by how much.

    Example: `ralm probe http://localhost:8000#my-model`
    """
    if not is_api(lm):
        raise UsageError(f"{lm} is not a model behind an API; write URL#MODEL.")

    from ralm.cli.output import print_line
    from ralm.lm.registry import probe_language_model

    model_options.check_effect(lm)
    model = probe_language_model(lm, model_options.api)
    from ralm.lm.api.probe import cache_difference  # needs the extra, like the line before

    with model.client:
        difference = cache_difference(model)
    probed, config, scores_prompts = model.capabilities, model.capabilities.config, model.backend.scores_prompts
    length = f"{probed.max_length:,} tokens" if probed.max_length else "not reported; write --lm-args context_length=N"
    capabilities = {
        "backend": f"{config.backend}, with {'token ids' if config.as_ids else 'text'} as prompts",
        "prompt's log-probs": "yes" if scores_prompts else "no",
        "chosen tokens": "yes" if model.backend.max_chosen else "no",
        "most likely tokens": config.top_logprobs or "none",
        "BOS": "put before text by the server" if config.begin is not None else "none added",
        "reads at once": length,
        "asked again": "no figures" if difference is None else f"figures differ by at most {difference:.2g} nats",
    }

    def print_capabilities() -> None:
        print_line(f"{model.name}\n  tier {model.backend.tier}")
        for what, value in capabilities.items():
            print_line(f"  {what:<20}{value}")
        for what, reason in probed.ruled_out:
            print_line(f"  not {what}: {reason}")
        print_line(f"  {model.client.usage.describe()}")

    result = {"name": model.name, **asdict(probed), "tier": model.backend.tier, "cache_difference": difference}
    return flags.Output(lambda: result, print_capabilities)

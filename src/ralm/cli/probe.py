"""`ralm probe`: finds out what a server of language models can do."""

from typing import TYPE_CHECKING, Annotated

import typer

from ralm.cli import options
from ralm.cli.flags import Flags
from ralm.errors import UsageError
from ralm.lm.api.endpoint import is_api
from ralm.lm.api.options import ApiOptions

if TYPE_CHECKING:
    from ralm.lm.api.model import ApiModel

_API = ApiOptions()


def probe(
    lm: Annotated[
        str, typer.Argument(metavar="URL#MODEL", help="Model behind an API; or PROVIDER:MODEL.", show_default=False)
    ],
    api: Annotated[ApiOptions, Flags(without=("dry_run", "requests_at_once"))] = _API,
    json: options.Json = False,
) -> None:
    """Find out what a server tells of a language model: what ralm can do with it exactly, by bounds, or not at all.

    The server reads and continues a known text in several ways, and its figures must agree with each other. Other
    commands do the same on first contact; this one prints what was found, and does it anew.
    """
    if not is_api(lm):
        raise UsageError(f"{lm} is not a model behind an API; write URL#MODEL.")

    from ralm.cli.output import print_json
    from ralm.lm.named import probe_language_model

    model = probe_language_model(lm, api)
    if json:
        print_json({"name": model.name, **model.capabilities.as_json(), "tier": model.capabilities.tier})
    else:
        _print(model)
    model.client.close()


def _print(model: "ApiModel") -> None:
    from ralm.cli.output import print_line

    found, way = model.capabilities, model.way
    asking = found.asking
    length = f"{found.max_length:,} tokens" if found.max_length else "not told: say it with --context-length"
    print_line(f"{model.name}")
    print_line(f"  tier {found.tier}")
    print_line(f"  asked by            {asking.way}, with {'token ids' if asking.as_ids else 'text'} as prompts")
    print_line(f"  prompt's log-probs  {'yes' if way.reads_prompts else 'no'}")
    print_line(f"  chosen tokens       {'yes' if way.chooses else 'no'}")
    print_line(f"  likeliest tokens    {asking.likeliest or 'none'}")
    print_line(f"  BOS                 {'put before text by the server' if asking.begin is not None else 'none added'}")
    print_line(f"  reads at once       {length}")
    for what, reason in found.ruled_out:
        print_line(f"  not {what}: {reason}")
    print_line(f"  {model.client.spent.said()}")

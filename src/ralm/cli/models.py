"""Opens the language models of a command, and says at its end what was asked of servers."""

import gc
from typing import TYPE_CHECKING, Any

from ralm.cli.messages import note
from ralm.lm.options import ModelOptions

if TYPE_CHECKING:
    from ralm.protocols import WritingModel

_opened: "list[WritingModel]" = []


def open_model(name: str, options: ModelOptions) -> "WritingModel":
    """The language model of a name; raises what `load_language_model` raises.

    What is loaded now stays to the end, so the garbage collector need not look through it: that takes longer than to
    read what a server answers.
    """
    from ralm.lm.named import load_language_model

    model = load_language_model(name, options)
    _opened.append(model)
    gc.freeze()
    return model


def close_models() -> None:
    """Close the models that were opened, and print what was asked of servers."""
    gc.unfreeze()
    while _opened:
        client: Any = getattr(_opened.pop(), "client", None)
        if client is not None:
            client.close()
            spent, dry = client.spent, client.options.dry_run
            note(f"{client.endpoint.model}: {spent.said_of_dry_run() if dry else spent.said()}")

"""Dry runs of commands: all is done but asking the server; nothing is printed, and nothing stays that is written."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

_OUTPUTS: Final = ("out", "report")
"""The parameters of commands that name what they write."""


@contextmanager
def rehearsal(values: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The values of a command's flags; for a dry run, with outputs in a folder that is removed at the end."""
    if not values.get("dry_run"):
        yield values
        return
    with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        yield {**values, **{name: str(Path(folder) / name) for name in _OUTPUTS if values.get(name) is not None}}

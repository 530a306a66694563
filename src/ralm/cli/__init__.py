"""The command line: one file a command, each a thin skin over the library.

The commands import what they need when they run, not before: `ralm --help` must not wait for torch.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any, TextIO

import typer

from ralm.cli.check import check
from ralm.cli.demo import demo
from ralm.cli.eval import evaluate
from ralm.cli.flags import command
from ralm.cli.generate import generate
from ralm.cli.index import index
from ralm.cli.messages import note, print_usage_error, print_whatever_comes
from ralm.cli.report import report
from ralm.cli.retrieve import retrieve
from ralm.cli.search import search
from ralm.cli.signals import signals_unwind
from ralm.cli.sweep import sweep
from ralm.errors import RalmError, RalmWarning, UsageError
from ralm.version import __version__

_PYTHONS_OWN = warnings.showwarning

app = typer.Typer(
    name="ralm",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ralm {__version__}")
        raise typer.Exit


@app.callback()
def _ralm(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Retrieval-augmented language models that need no change to the model.

    Index a corpus, then score and generate with a frozen language model that has the right passage in front of it.
    `ralm demo` shows it all on what is at hand.
    """


_COMMANDS: dict[str, Callable[..., None]] = {
    "index": index,
    "search": search,
    "eval": evaluate,
    "sweep": sweep,
    "report": report,
    "retrieve": retrieve,
    "generate": generate,
    "check": check,
    "demo": demo,
}
for _name, _function in _COMMANDS.items():
    app.command(_name)(command(_function))


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning of ours is one line on standard error; any other is shown as Python shows it."""
    if issubclass(category, RalmWarning):
        note(f"warning: {message}")
    else:
        _PYTHONS_OWN(message, category, filename, lineno, file, line)


def main() -> None:
    """Run the program; an error that ralm raises on purpose is one sentence on standard error, never a traceback."""
    print_whatever_comes()
    warnings.simplefilter("always", RalmWarning)
    warnings.showwarning = _show_warning
    try:
        if any("\0" in argument for argument in sys.argv):
            raise UsageError("an argument holds a NUL character, which no text and no name has.")
        with signals_unwind():
            sys.exit(_run())
    except RalmError as error:
        note(str(error))
        sys.exit(error.exit_status)
    except UnicodeEncodeError as error:
        note(f"{error.object} is not UTF-8 where it has to be: rename it, or convert it.")
        sys.exit(1)
    except OSError as error:
        note(f"{error.filename or 'a file'}: {error.strerror or error}")
        sys.exit(1)


def _run() -> int | None:
    """Run what the arguments say; the exit status of what ended early, or of a wrong call."""
    try:
        return app(standalone_mode=False)
    except typer.Abort:
        return 1
    except Exception as error:
        if not hasattr(error, "format_message"):  # the class of such errors is not where every typer has it
            raise
        shown: Any = error
        print_usage_error(shown)
        return shown.exit_code

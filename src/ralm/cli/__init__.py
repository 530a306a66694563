"""The command line: one file a command, each a thin skin over the library.

The commands import what they need when they run, not before: `ralm --help` must not wait for torch.
"""

import sys
import warnings
from typing import TextIO

import typer

from ralm.cli.demo import demo
from ralm.cli.eval import evaluate
from ralm.cli.generate import generate
from ralm.cli.index import index
from ralm.cli.report import report
from ralm.cli.retrieve import retrieve
from ralm.cli.search import search
from ralm.cli.sweep import sweep
from ralm.errors import RalmError, RalmWarning
from ralm.version import __version__

_PYTHONS_OWN = warnings.showwarning

app = typer.Typer(
    name="ralm",
    no_args_is_help=True,
    add_completion=False,
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


app.command("index")(index)
app.command("search")(search)
app.command("eval")(evaluate)
app.command("sweep", context_settings={"ignore_unknown_options": True})(sweep)
app.command("report")(report)
app.command("retrieve")(retrieve)
app.command("generate")(generate)
app.command("demo")(demo)


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
        sys.stderr.write(f"ralm: warning: {message}\n")
    else:
        _PYTHONS_OWN(message, category, filename, lineno, file, line)


def main() -> None:
    """Run the program; an error that ralm raises on purpose is one sentence on standard error, never a traceback."""
    warnings.simplefilter("always", RalmWarning)
    warnings.showwarning = _show_warning
    try:
        app()
    except RalmError as error:
        sys.stderr.write(f"ralm: {error}\n")
        sys.exit(error.exit_status)
    except OSError as error:
        sys.stderr.write(f"ralm: {error.filename or 'a file'}: {error.strerror or error}\n")
        sys.exit(1)

"""The command line: one file a command, each a thin skin over the library.

The commands import what they need when they run, not before: `ralm --help` must not wait for torch.
"""

import sys
from typing import Any

import typer

from ralm.cli.check import check
from ralm.cli.demo import demo
from ralm.cli.encode import encode
from ralm.cli.eval import evaluate
from ralm.cli.generate import generate
from ralm.cli.index import index
from ralm.cli.messages import complain, library_messages, print_usage_error, print_whatever_comes, quietly
from ralm.cli.report import report
from ralm.cli.retrieve import retrieve
from ralm.cli.search import search
from ralm.cli.signals import signals_unwind
from ralm.cli.sweep import sweep
from ralm.errors import RalmError, UsageError
from ralm.version import __version__

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


def _be_quiet(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.with_resource(quietly())


@app.callback()
def _ralm(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
    quiet: bool = typer.Option(
        False, "--quiet", callback=_be_quiet, help="Print no progress and no notes; warnings and errors remain."
    ),
) -> None:
    """Retrieval-augmented language models that need no change to the model.

    Index a corpus, then score and generate with a frozen language model that has the right passage in front of it.
    `ralm demo` shows it all on what is at hand.
    """


app.command("index")(index)
app.command("encode")(encode)
app.command("search")(search)
app.command("eval")(evaluate)
app.command("sweep", context_settings={"ignore_unknown_options": True})(sweep)
app.command("report")(report)
app.command("retrieve")(retrieve)
app.command("generate")(generate)
app.command("check")(check)
app.command("demo")(demo)


def main() -> None:
    """Run the program; an error that ralm raises on purpose is one sentence on standard error, never a traceback."""
    print_whatever_comes()
    try:
        if any("\0" in argument for argument in sys.argv):
            raise UsageError("an argument holds a NUL character, which no text and no name has.")
        with signals_unwind(), library_messages():
            sys.exit(_run())
    except RalmError as error:
        complain(str(error))
        sys.exit(error.exit_status)
    except UnicodeEncodeError as error:
        complain(f"{error.object} is not UTF-8 where it has to be: rename it, or convert it.")
        sys.exit(1)
    except OSError as error:
        complain(f"{error.filename or 'a file'}: {error.strerror or error}")
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

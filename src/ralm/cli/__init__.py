"""The command line: one file per command, each a thin layer over the library.

Commands import what they need when they run: `ralm --help` must not wait for torch.
"""

import inspect
import io
import signal
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import typer

from ralm.cli.ask import ask_command
from ralm.cli.check import check_command, probe_command
from ralm.cli.demo import demo_command
from ralm.cli.eval import eval_command
from ralm.cli.flags import Output, command
from ralm.cli.generate import generate_command
from ralm.cli.help import CommandsInGroups, CommandWithGroups
from ralm.cli.index import encode_command, index_command, merge_command, update_command
from ralm.cli.info import documents_command, info_command
from ralm.cli.judge import judge_command
from ralm.cli.mcp import mcp_command
from ralm.cli.models import end_command
from ralm.cli.process import (
    escape_unprintable,
    library_messages,
    print_error,
    quietly,
    signals_unwind,
    warn_of_untested_versions,
)
from ralm.cli.qa import choice_command, curve_command, qa_command
from ralm.cli.recipe import list_command, run_command, show_command
from ralm.cli.report import compare_command, report_command
from ralm.cli.search import retrieve_command, search_command
from ralm.cli.serve import serve_command
from ralm.cli.sweep import sweep_command
from ralm.cli.sync import sync_command
from ralm.cli.train import gate_command, mixer_command, reranker_command, retriever_command, signals_command
from ralm.cli.worth import worth_command
from ralm.errors import RalmError, UsageError
from ralm.terminal import visible
from ralm.version import __version__


def _group(**how: Any) -> typer.Typer:
    help_options = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    return typer.Typer(
        cls=CommandsInGroups, no_args_is_help=True, rich_markup_mode=None, context_settings=help_options, **how
    )


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ralm {__version__}")
        raise typer.Exit


app = _group(name="ralm", pretty_exceptions_enable=False)


@app.callback()
def _ralm(
    context: typer.Context,
    _version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
    quiet: bool = typer.Option(False, "--quiet", help="Print no progress and no notes, only warnings and errors."),
) -> None:
    """Retrieval-augmented language models that need no change to the model.

    Index a corpus, then score and generate text with a frozen language model that reads retrieved passages first.
    `ralm demo` shows all of it without any download.
    """
    if quiet:
        context.with_resource(quietly())
    context.call_on_close(end_command)


def _add(group: typer.Typer, title: str, *functions: Callable[..., Output | None]) -> None:
    """Add commands, named after their functions, under a title; a list of commands shows the first sentence of their
    help, whole."""
    for function in functions:
        first, _, _ = (inspect.getdoc(function) or "").partition("\n\n")
        sentence, _, _ = " ".join(first.split()).partition(". ")
        name = function.__name__.removesuffix("_command")
        group.command(name, cls=CommandWithGroups, short_help=sentence.removesuffix("."), rich_help_panel=title)(
            command(function)
        )


_train = _group(help="Train small models on what a language model makes of passages (`ralm signals`).")
_recipe = _group(help="Run the tables and figures of both papers, with the paper's figures beside ours.")
_COMMANDS = "Commands"
_add(app, "Start", demo_command)
_add(
    app,
    "Index and search",
    index_command,
    update_command,
    sync_command,
    merge_command,
    encode_command,
    search_command,
    info_command,
    documents_command,
    judge_command,
)
_add(
    app,
    "Read and generate",
    worth_command,
    eval_command,
    sweep_command,
    report_command,
    compare_command,
    retrieve_command,
)
_add(app, "Read and generate", generate_command)
_add(app, "Answer questions", ask_command, qa_command, curve_command, choice_command)
_add(app, "Learn from the model", signals_command)
_add(_train, _COMMANDS, reranker_command, retriever_command, mixer_command, gate_command)
_add(_recipe, _COMMANDS, list_command, show_command, run_command)
for _name, _title, _commands in (("train", "Learn from the model", _train), ("recipe", "Rerun the papers", _recipe)):
    app.add_typer(_commands, name=_name, short_help=str(_commands.info.help).removesuffix("."), rich_help_panel=_title)
_add(app, "Serve and check", serve_command, mcp_command, probe_command, check_command)


@cache
def program() -> Any:
    """The commands with all their options. Made once: there are hundreds of options, and a process may run several
    commands. They remember how they were first asked for help."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the program. An error that ralm raises on purpose is printed on standard error without a traceback."""
    escape_unprintable()
    try:
        if any("\0" in argument for argument in sys.argv):
            raise UsageError("an argument holds a NUL character; remove it.")
        with signals_unwind(), library_messages():
            sys.exit(_run())
    except KeyboardInterrupt:  # as signals began or ceased to be handled
        sys.exit(128 + signal.SIGINT)
    except RalmError as error:
        print_error(str(error))
        warn_of_untested_versions(error)
        sys.exit(error.exit_status)
    except UnicodeEncodeError as error:
        print_error(f"{error.object} is not UTF-8, which is required here; rename or convert it.")
        sys.exit(1)
    except OSError as error:
        print_error(f"{error.filename or 'a file'}: {error.strerror or error}")
        sys.exit(1)
    except Exception as error:
        warn_of_untested_versions(error)
        raise


def _run() -> int | None:
    """Run the command; return the exit status if it ended early or its arguments were wrong."""
    try:
        return program()(standalone_mode=False)
    except typer.Abort:
        return 1
    except Exception as error:
        if not hasattr(error, "format_message"):  # not every version of typer exports the class of these errors
            raise
        wrong: Any = error
        usage = io.StringIO()
        wrong.show(file=usage)
        sys.stderr.write(visible(usage.getvalue()))
        return wrong.exit_code

"""The command line: one file per command, each a thin layer over the library.

Commands import what they need when they run: `ralm --help` must not wait for torch.
"""

import inspect
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import typer

from ralm.cli.ask import ask_command
from ralm.cli.check import check_command, probe_command
from ralm.cli.demo import demo_command
from ralm.cli.eval import evaluate_command
from ralm.cli.flags import command
from ralm.cli.generate import generate_command
from ralm.cli.index import encode_command, index_command, merge_command, update_command
from ralm.cli.models import close_models
from ralm.cli.process import (
    escape_unprintable,
    library_messages,
    print_error,
    print_usage_error,
    quietly,
    signals_unwind,
    warn_of_untested_versions,
)
from ralm.cli.qa import choice_command, curve_command, qa_command
from ralm.cli.recipe import list_recipes_command, run_command, show_command
from ralm.cli.report import compare_command, report_command
from ralm.cli.search import retrieve_command, search_command
from ralm.cli.serve import serve_command
from ralm.cli.sweep import sweep_command
from ralm.cli.train import bm25_command, reranker_command, retriever_command, signals_command
from ralm.errors import RalmError, UsageError
from ralm.version import __version__

_HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
app = typer.Typer(
    name="ralm", no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=_HELP
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
        False, "--quiet", callback=_be_quiet, help="Print no progress and no notes, only warnings and errors."
    ),
) -> None:
    """Retrieval-augmented language models that need no change to the model.

    Index a corpus, then score and generate text with a frozen language model that reads retrieved passages first.
    `ralm demo` shows all of it without any download.
    """


_COMMANDS: dict[str, Callable[..., None]] = {
    "index": index_command,
    "update": update_command,
    "merge": merge_command,
    "encode": encode_command,
    "search": search_command,
    "eval": evaluate_command,
    "sweep": sweep_command,
    "ask": ask_command,
    "qa": qa_command,
    "curve": curve_command,
    "choice": choice_command,
    "report": report_command,
    "compare": compare_command,
    "retrieve": retrieve_command,
    "generate": generate_command,
    "serve": serve_command,
    "signals": signals_command,
    "probe": probe_command,
    "check": check_command,
    "demo": demo_command,
}


def _add(group: typer.Typer, name: str, function: Callable[..., None], **how: bool) -> None:
    """Add a command; the list of commands shows the first sentence of its help, whole."""
    first, _, _ = (inspect.getdoc(function) or "").partition("\n\n")
    sentence, _, _ = " ".join(first.split()).partition(". ")
    group.command(name, short_help=sentence.removesuffix("."))(command(function, **how))


for _name, _function in _COMMANDS.items():
    _add(app, _name, _function)


_train = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=_HELP,
    help="Train small models on what a language model makes of passages (`ralm signals`).",
)
_add(_train, "reranker", reranker_command)
_add(_train, "retriever", retriever_command)
_add(_train, "bm25", bm25_command)
app.add_typer(_train, name="train", short_help=str(_train.info.help).removesuffix("."))

_recipe = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=_HELP,
    help="Run the tables and figures of both papers, with the paper's figures beside ours.",
)
_add(_recipe, "list", list_recipes_command)
_add(_recipe, "show", show_command)
_add(_recipe, "run", run_command, has_dry_run=False)
app.add_typer(_recipe, name="recipe", short_help=str(_recipe.info.help).removesuffix("."))


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
            try:
                sys.exit(_run())
            finally:
                close_models()
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
        shown: Any = error
        print_usage_error(shown)
        return shown.exit_code

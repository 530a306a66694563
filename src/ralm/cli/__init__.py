"""The command line: one file per command, each a thin layer over the library.

Commands import what they need when they run: `ralm --help` must not wait for torch.
"""

import gc
import inspect
import io
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final

import typer

from ralm import __version__
from ralm.cli.flags import CommandsInGroups, CommandWithGroups, Output, command
from ralm.cli.process import end_command, escape_unprintable, library_messages, print_error, quietly, signals_unwind
from ralm.errors import RalmError, UsageError
from ralm.terminal import visible

_COMMANDS: Final = (
    ("Start", "demo", ("demo",)),
    ("Index and search", "index", ("index",)),
    ("Index and search", "index", ("sync",)),
    ("Index and search", "index", ("encode",)),
    ("Index and search", "search", ("search",)),
    ("Index and search", "check", ("info",)),
    ("Read and generate", "worth", ("worth",)),
    ("Read and generate", "eval", ("eval",)),
    ("Read and generate", "report", ("report",)),
    ("Read and generate", "search", ("retrieve",)),
    ("Read and generate", "generate", ("generate",)),
    ("Answer questions", "ask", ("ask",)),
    ("Answer questions", "qa", ("qa",)),
    ("Learn from the model", "train", ("signals",)),
    ("Learn from the model", "train", {"train": ("reranker", "retriever")}),
    ("Rerun the papers", "recipe", {"recipe": ("list", "show", "run")}),
    ("Serve and check", "serve", ("serve",)),
    ("Serve and check", "serve", ("mcp",)),
    ("Serve and check", "check", ("probe", "check")),
    ("Serve and check", "check", ("help",)),
)
"""The commands as help lists them: the title, the module, and the names, or those of a group of commands."""
_GROUPS: Final = {
    "train": "Train small models on what a language model makes of passages (`ralm signals`).",
    "recipe": "Rerun the tables and figures of both papers.",
}
"""What the groups of commands are for."""


def _group(**how: Any) -> typer.Typer:
    help_options = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    return typer.Typer(
        cls=CommandsInGroups, no_args_is_help=True, rich_markup_mode=None, context_settings=help_options, **how
    )


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"ralm {__version__}")
        raise typer.Exit


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


def _add(group: typer.Typer, title: str, module: Any, names: Iterable[str]) -> None:
    """Add commands of a module under a title; a list of commands shows the first sentence of their help, whole."""
    for name in names:
        function: Callable[..., Output | None] = getattr(module, f"{name}_command")
        first, _, _ = (inspect.getdoc(function) or "").partition("\n\n")
        sentence, _, _ = " ".join(first.split()).partition(". ")
        group.command(name, cls=CommandWithGroups, short_help=sentence.removesuffix("."), rich_help_panel=title)(
            command(function)
        )


def application(only: str | None = None) -> typer.Typer:
    """Return the application with all commands, or with one command alone, which loads faster."""
    app = _group(name="ralm", pretty_exceptions_enable=False)
    app.callback()(_ralm)
    for title, file, names in _COMMANDS:
        if only is not None and only not in names:
            continue
        module = import_module(f"ralm.cli.{file}")
        if isinstance(names, tuple):
            _add(app, title, module, names)
            continue
        for name, inside in names.items():
            group = _group(help=_GROUPS[name])
            _add(group, "Commands", module, inside)
            app.add_typer(group, name=name, short_help=_GROUPS[name].removesuffix("."), rich_help_panel=title)
    return app


@cache
def program(only: str | None = None) -> Any:
    """Return the commands of `application`, made once: there are hundreds of options, and a process may run several."""
    # Private: typer's command of an application; test_flags.py.
    return typer.main.get_command(application(only))


def _named_command(arguments: Sequence[str]) -> str | None:
    """Return the command that arguments name; empty for the version alone, None if it cannot be told, as for help."""
    if "--version" in arguments[:1]:
        return ""
    named = next((argument for argument in arguments if argument != "--quiet"), None)
    return named if any(named in names for _, _, names in _COMMANDS) else None


def main() -> None:
    """Run the program. An error that ralm raises on purpose is printed on standard error without a traceback."""
    escape_unprintable()
    gc.set_threshold(20_000)  # most objects of imports stay, and looking at them takes a tenth of the start
    try:
        if any("\0" in argument for argument in sys.argv):
            raise UsageError("an argument holds a NUL character; remove it.")
        with signals_unwind(), library_messages():
            sys.exit(_run())
    except KeyboardInterrupt:  # as signals began or ceased to be handled
        sys.exit(128 + signal.SIGINT)
    except RalmError as error:
        print_error(str(error))
        sys.exit(error.exit_status)
    except UnicodeEncodeError as error:
        print_error(f"{error.object} is not UTF-8, which is required here; rename or convert it.")
        sys.exit(1)
    except OSError as error:
        print_error(f"{error.filename or 'a file'}: {error.strerror or error}")
        sys.exit(1)


def _run() -> int | None:
    """Run the command; return the exit status if it ended early or its arguments were wrong."""
    try:
        return program(_named_command(sys.argv[1:]))(standalone_mode=False)
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

"""Write docs/command-line.md from the program's own help: `python -m tools.command_line_page > docs/command-line.md`.

A test fails if the page and the program differ.
"""

from collections.abc import Iterator
from typing import Any

from ralm.cli import program

WIDTH = 100
HEAD = """# Command line

Generated from `ralm --help` by `make docs`; do not edit.

Results go to standard output, progress and messages to standard error. The exit status is 0 on success, 1 if a command
failed, and 2 if its arguments were wrong. `ralm --quiet COMMAND` prints only warnings and errors. `RALM_PROGRESS=0` in
the environment turns off only progress, in Python programs too.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_sections(program(), "ralm")])


def _sections(command: Any, name: str, parent: Any = None) -> Iterator[str]:
    """A section for a command, and for each command within it."""
    context = command.make_context(
        name, [], parent=parent, resilient_parsing=True, terminal_width=WIDTH, max_content_width=WIDTH
    )
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    for inner, subcommand in getattr(command, "commands", {}).items():
        yield from _sections(subcommand, inner, context)


if __name__ == "__main__":
    print(page(), end="")

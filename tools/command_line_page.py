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
    commands: Any = program()
    return "\n".join([HEAD, *_sections(commands, "ralm")])


def _sections(command: Any, name: str) -> Iterator[str]:
    """A section for a command, and for each command within it."""
    yield _section(command, name)
    for inner, one in getattr(command, "commands", {}).items():
        yield from _sections(one, f"{name} {inner}")


def _section(command: Any, name: str) -> str:
    context = command.make_context(name, [], resilient_parsing=True, terminal_width=WIDTH, max_content_width=WIDTH)
    return f"## {name}\n\n```text\n{command.get_help(context)}\n```\n"


if __name__ == "__main__":
    print(page(), end="")

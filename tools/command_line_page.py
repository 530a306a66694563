"""Write docs/command-line.md from the program's own help: `python -m tools.command_line_page > docs/command-line.md`.

A test fails if the page and the program differ.
"""

from typing import Any

import typer

from ralm.cli import app

WIDTH = 100
HEAD = """# Command line

Generated from `ralm --help` by `make docs`; do not edit.

Results go to standard output, progress and messages to standard error. The exit status is 0 on success, 1 if a command
failed, and 2 if its arguments were wrong. `ralm --quiet COMMAND` prints only warnings and errors. `RALM_PROGRESS=0` in
the environment turns off only progress, in Python programs too.
"""


def page() -> str:
    """The whole page."""
    program: Any = typer.main.get_command(app)
    parts = [HEAD, _section(program, "ralm")]
    parts += [_section(command, f"ralm {name}") for name, command in program.commands.items()]
    return "\n".join(parts)


def _section(command: Any, name: str) -> str:
    context = command.make_context(name, [], resilient_parsing=True, terminal_width=WIDTH, max_content_width=WIDTH)
    return f"## {name}\n\n```text\n{command.get_help(context)}\n```\n"


if __name__ == "__main__":
    print(page(), end="")

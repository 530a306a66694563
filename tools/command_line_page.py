"""Write docs/command-line.md from the program's own help: `python -m tools.command_line_page > docs/command-line.md`.

A test fails if the page and the program differ.
"""

import re
from collections.abc import Iterator
from typing import Any

from ralm.cli import program
from ralm.cli.check import RECORDS, default_of, meaning_of
from ralm.grammar import keys_of

WIDTH = 100
HEAD = """# Command line

Generated from `ralm --help` by `make docs`; do not edit.

Results go to standard output, progress and messages to standard error. The exit status is 0 on success, 1 if a command
failed, and 2 if its arguments were wrong. `ralm --quiet COMMAND` prints only warnings and errors. `RALM_PROGRESS=0` in
the environment turns off only progress, in Python programs too. The [parts](#parts) that options name stand at the end.
"""
PARTS = """## Parts

A part is written `NAME:key=value,key=value`, such as `--reader ensemble:documents=4`. Options without parts take
`key=value,key=value`. `...` stands for a default that is no fixed value. `ralm help` prints these tables.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_sections(program(), "ralm"), PARTS, *map(_table, RECORDS)])


def _sections(command: Any, name: str, parent: Any = None) -> Iterator[str]:
    """A section for a command, and for each command within it."""
    context = command.make_context(
        name, [], parent=parent, resilient_parsing=True, terminal_width=WIDTH, max_content_width=WIDTH
    )
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    for inner, subcommand in getattr(command, "commands", {}).items():
        yield from _sections(subcommand, inner, context)


def _table(kind: str) -> str:
    """The table of the parts of a kind, each with its keys."""
    rows = [f"### {'--fields of ralm qa' if kind == 'question-fields' else f'--{kind}'}", ""]
    rows += ["| part | key=default | meaning |", "|---|---|---|"]
    for name, record in RECORDS[kind].items():
        if name:
            rows.append(f"| `{name}` | | {_first_sentence(record)} |")
        rows += [f"| | `{key}={default_of(one)}` | {meaning_of(one)} |" for key, one in keys_of(record).items()]
    return "\n".join([*rows, ""])


def _first_sentence(record: type) -> str:
    """The first sentence of a docstring, in one line; "Eq." ends none."""
    return " ".join(re.split(r"(?<=[^q]\.)\s", record.__doc__ or "", maxsplit=1)[0].split())


if __name__ == "__main__":
    print(page(), end="")

"""Help in groups: a command's most used options first, the others by what they decide, and commands by what they do."""

from collections.abc import Iterable
from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

_FIRST: Final = "Options"
_LAST: Final = "Output, limits and machines"
_MOST_USED: Final = (
    *("encoder", "retriever", "rerank", "documents", "reader", "mixer"),
    *("stride", "new_tokens", "host", "port"),
)
_RECORDS: Final = {
    "ralm.worth": "What is measured",
    "ralm.cli.search": "How retrieval is judged",
    "ralm.answering": "How questions are asked",
    "ralm.cli.index": "How files are read",
    "ralm.corpus": "How files are read",
    "ralm.reading": "How passages are read",
    "ralm.reading.plan": "Strides and windows",
    "ralm.reading.sampling": "How text is generated",
    "ralm.retrieval": "How passages are found",
    "ralm.retrieval.bm25": "How the index is built",
    "ralm.serving": "How the server works",
    "ralm.training": "How the training runs",
}
"""The groups of options by the package or module whose record has them."""
_OWN: Final = {
    **dict.fromkeys(("forbidden_titles", "retrieved"), _RECORDS["ralm.retrieval"]),
    **dict.fromkeys(("prompt", "semantics", "demonstrations", "shots"), _RECORDS["ralm.answering"]),
    **dict.fromkeys(("audit_log", "audit_texts", "max_length"), _RECORDS["ralm.serving"]),
    "fields": _RECORDS["ralm.corpus"],
    **dict.fromkeys(("encoder_args", "lm_args"), "How models run"),
    **dict.fromkeys(("force", "json", "latex", "limit", "limit_tokens", "ray", "skip_bad"), _LAST),
}
"""The groups of options that the commands themselves have, by name; the others come first."""


def group_of(name: str, owner: type) -> str:
    """Return the title of the group of an option that a record has, or a command itself."""
    if name in _MOST_USED:
        return _FIRST
    titles = [title for package, title in _RECORDS.items() if f"{owner.__module__}.".startswith(f"{package}.")]
    return titles[-1] if titles else _OWN.get(name, _FIRST)


class CommandWithGroups(TyperCommand):
    """A command whose help lists its options in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the groups of options."""
        shown = [(parameter, row) for parameter in self.get_params(ctx) if (row := parameter.get_help_record(ctx))]
        arguments = [("Arguments", row) for parameter, row in shown if parameter.param_type_name == "argument"]
        options = [(_title(parameter), row) for parameter, row in shown if parameter.param_type_name == "option"]
        _write_groups(arguments, formatter)
        _write_groups(options, formatter)


class CommandsInGroups(TyperGroup):
    """A list of commands in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the groups of commands."""
        commands = [(name, command) for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))]
        _write_groups(
            [(_title(command), (name, command.get_short_help_str(200))) for name, command in commands], formatter
        )


def _title(declared: Any) -> str:
    """Return the group of a parameter or command; typer declares --help without one."""
    title = vars(declared).get("rich_help_panel")
    return title if isinstance(title, str) else _LAST


def _write_groups(rows: Iterable[tuple[str, tuple[str, str]]], formatter: Any) -> None:
    """Write each group under its title, in the order in which they begin; the first and last ones in their places."""
    groups: dict[str, list[tuple[str, str]]] = {_FIRST: []}
    for title, row in rows:
        groups.setdefault(title, []).append(row)
    for title in sorted(groups, key=lambda title: title == _LAST):
        if groups[title]:
            with formatter.section(title):
                formatter.write_dl(groups[title])

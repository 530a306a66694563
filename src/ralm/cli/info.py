"""`ralm info` says what an index is, and lists its documents."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final

import ralm
from ralm.cli import flags, options
from ralm.options import Needs, Option

if TYPE_CHECKING:
    from ralm.retrieval.summary import DocumentSummary

_LABEL: Final = 12
_SYNC: Final = {True: "possible", False: "not possible: a program built it"}


def info_command(
    *,
    index: options.IndexArgument,
    documents: Annotated[
        bool, Option("List the documents instead: passages, characters, id and title of each.")
    ] = False,
    path: Annotated[
        str | None,
        Option(
            "List those whose ids match this pattern, such as '2024/*.md'; * also matches /.",
            needs=Needs("`documents`", lambda command: command.documents),
        ),
    ] = None,
) -> flags.Output:
    """Say what an index is: how many documents it has, of which sources, how it was built, and its size.

    Example: `ralm info my-index`
    """
    from ralm.retrieval.summary import summarise_documents, summarise_index

    if documents:
        listed = summarise_documents(ralm.open_index(index).passages, path)
        return flags.Output(lambda: {"documents": [row._asdict() for row in listed]}, lambda: _print_documents(listed))
    summary = summarise_index(ralm.open_index(index))
    return flags.Output(lambda: summary, lambda: _print_summary(summary))


def _print_summary(summary: dict[str, Any]) -> None:
    from ralm.cli.output import print_line
    from ralm.terminal import one_line

    def show(what: str, text: str) -> None:
        print_line(f"  {what:<{_LABEL}}{one_line(text)}")

    print_line(one_line(summary["index"]))
    for what, count in summary["counts"].items():
        show(what, f"{count:,}")
    size = summary["bytes"]
    show("size", f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB")
    show("built", f"{summary['created']}, ralm {summary['ralm_version']}")
    for source in summary["sources"]:
        missing = " (not found)" if source["found"] is False else ""
        show("source", source["name"] + (f": {source['path']}{missing}" if source["path"] else ""))
    show("ralm sync", _SYNC[summary["can_sync"]])
    show("splitting", _settings(summary["splitting"]))
    show("BM25", _settings(summary["bm25"]))
    for vectors in summary["vectors"]:
        default = " (default)" if vectors["default"] else ""
        show("vectors", f"{vectors['name']}{default}: {_settings({**vectors['encoder'], 'faiss': vectors['faiss']})}")
    for reason, count in summary["skipped"].items():
        show("left out", f"{reason}: {count:,}")
    for reason, counts in summary["decontaminated"].items():
        show("left out", f"for {reason}: {counts['passages']:,} passages")


def _settings(record: dict[str, Any] | None) -> str:
    """Return the settings of a record that are no records and not null."""
    if record is None:
        return "none"
    return ", ".join(f"{name} {value}" for name, value in record.items() if not isinstance(value, dict | list | None))


def _print_documents(documents: "Iterable[DocumentSummary]") -> None:
    from ralm.cli.output import document_name, print_line

    for document in documents:
        name = document_name(document.document_id, document.title)
        print_line(f"{document.passages:>8,} {document.characters:>12,}  {name}")

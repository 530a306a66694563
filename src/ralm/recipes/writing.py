"""Writes data sets to the files that commands read: a text of all rows, documents as JSON Lines, a list of titles.

WikiText's rows are lines. Its text is all of them, an empty one as ` \\n`, as in the official code of In-Context RALM.
Rows of other data sets are documents: two line breaks are between them.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from ralm.corpus.folder import HUB_PREFIX
from ralm.corpus.formats.arrow import dataset_records
from ralm.errors import CorpusError
from ralm.recipes.resources import Resource
from ralm.storage.outputs import replaced_file

_HEADING: Final = re.compile(r"^ = ([^=].*[^=]) = $", re.MULTILINE)
_JOINED: Final = re.compile(r" @(.)@ ")
_BEFORE: Final = re.compile(r" ([,.;:?!)%']|'s\b)")
_AFTER: Final = re.compile(r"([($]) ")


def write_resource(resource: Resource, path: Path) -> None:
    """Read the data set of a resource and write its file atomically.

    Raises CorpusError if the data set cannot be read or gives nothing, MissingExtraError without the extra `datasets`.
    """
    texts = _texts(resource)
    with replaced_file(path) as stream:
        lines = 0
        for lines, text in enumerate(_written(resource, texts), 1):  # noqa: B007
            stream.write(text)
        if not lines:
            raise CorpusError(f"{resource.source} has nothing for {resource.name}.")


def write_titles(texts: Iterable[str], path: Path) -> None:
    """Write the titles of the articles in texts of WikiText, one a line, as Wikipedia writes them, too."""
    titles = [title for text in texts for title in _HEADING.findall(text)]
    with replaced_file(path) as stream:
        for one in dict.fromkeys(variant for title in titles for variant in (title, plain_title(title))):
            stream.write(f"{one}\n")


def plain_title(title: str) -> str:
    """A title as it was before WikiText's tokenization: `Ise @-@ class battleship` is `Ise-class battleship`."""
    joined = _JOINED.sub(r"\1", title)
    return _AFTER.sub(r"\1", _BEFORE.sub(r"\1", joined))


def articles(rows: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The title and text of each article in rows of WikiText."""
    title, lines = "", list[str]()
    for row in rows:
        if heading := _HEADING.fullmatch(row.rstrip("\n")):
            if lines:
                yield title, "".join(lines)
            title, lines = heading[1], []
        elif row.strip():
            lines.append(row)
    if lines:
        yield title, "".join(lines)


def _texts(resource: Resource) -> Iterator[str]:
    name = resource.source.removeprefix(HUB_PREFIX)
    field = resource.only[0].partition(".")[0] if resource.only else ""
    records = dataset_records(name, lambda schema: [one for one in schema.names if one in ("text", field)])
    kept = (
        record for record in records if resource.only is None or _value(record, resource.only[0]) == resource.only[1]
    )
    for record in islice(kept, resource.most):
        if not isinstance(record.get("text"), str):
            raise CorpusError(f"{resource.source} has a record without a text.")
        yield str(record["text"])


def _value(record: Mapping[str, Any], field: str) -> Any:
    value: Any = record
    for name in field.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _written(resource: Resource, texts: Iterator[str]) -> Iterator[str]:
    """The parts of the file."""
    match resource.writes:
        case "wikitext":
            yield from (text or " \n" for text in texts)
        case "joined":
            for number, text in enumerate(texts):
                yield f"\n\n{text}" if number else text
        case "articles":
            for title, text in articles(texts):
                yield json.dumps({"title": title, "text": text}, ensure_ascii=False) + "\n"
        case "lines":
            yield from (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        case _:
            raise AssertionError(resource.writes)

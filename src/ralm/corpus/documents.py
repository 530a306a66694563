"""Makes documents of the records that readers of formats find, and counts what is skipped."""

import datetime
import json
import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Final

import numpy as np
from pydantic import JsonValue

from ralm.corpus.files import OR_CONVERT, File, line_feeds
from ralm.corpus.structure import find_headings
from ralm.errors import CorpusError
from ralm.options import Checked, Option
from ralm.records import ORIGIN, Document, Heading, Metadata

BROKEN_LINES: Final = "broken lines, objects or pages"
BROKEN_FILES: Final = "files that cannot be read"
EMPTY_FILES: Final = "empty files"
NO_TEXT: Final = "documents without text"
NO_TEXT_PAGES: Final = "pages without text"
UNKNOWN: Final = "files of an unknown kind"
LINKS: Final = "links that lead to nothing new"
NOT_CHOSEN: Final = "files that the patterns leave out"
UNMATCHED: Final = "patterns for which no file is read"
HIDDEN: Final = "hidden files and folders"
NOT_JSON: Final = "fields of metadata that JSON cannot hold"
_EXAMPLES_KEPT: Final = 5
_KINDS_LISTED: Final = 20
_SHOWN: Final = 3

SKIP_ADVICE: Final = " Fix it, or skip such lines with `skip_bad=True`."
"""Ends the message of a broken line that has no other advice."""
_NAME_ADVICE: Final = " Name the right one with `fields` text=NAME."
_NOT_NAMES: Final = (bytes, list, dict, tuple, set)
_FIELDS_COUNTED: Final = 1000
_NAMES_SHOWN: Final = 40

_MAX_DEPTH: Final = 100
"""How deeply lists and objects may be nested: recursive functions, here and in `json`, must reach the bottom."""
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_MAX_WHOLE: Final = 1 << 53
_MAX_VALUES: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields(Checked):
    """The names of the fields with a document's id, title, text and metadata, of which only the text is required.

    A record without an id gets one from its place (`read_documents`). `metadata` None keeps all other fields.
    """

    id: Annotated[str, Option("Field with the id of a document.")] = "id"
    title: Annotated[str, Option("Field with its title.")] = "title"
    text: Annotated[str, Option("Field with its text.")] = "text"
    metadata: Annotated[
        tuple[str, ...] | None,
        Option(
            'Other fields to keep with its passages: metadata="url,date"; empty: none.',
            default_text="every other field",
        ),
    ] = None

    def needed(self, names: Iterable[str]) -> list[str]:
        """Return the fields, among these, that a document is made of."""
        names = list(names)
        kept = {self.id, self.title, self.text, *self.metadata_of(names)}
        return [name for name in names if name in kept]

    def metadata_of(self, names: Iterable[str]) -> list[str]:
        """Return the fields, among these, that are kept as metadata."""
        if self.metadata is None:
            return [name for name in names if name not in (self.id, self.title, self.text)]
        present = set(names)
        return [name for name in self.metadata if name in present]


@dataclass(slots=True)
class Skipped:
    """What reading a corpus skipped: counts by reason, with the first few examples of each.

    `kinds` counts the files of unknown kinds by suffix.
    """

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    latest: dict[str, str] = field(default_factory=dict)
    """The latest example of each reason."""

    def add(self, reason: str, example: str, count: int = 1) -> None:
        """Count so many more for this reason; equal examples are kept once."""
        self.counts[reason] += count
        self.latest[reason] = example
        kept = self.examples.setdefault(reason, [])
        if len(kept) < _EXAMPLES_KEPT and example not in kept:
            kept.append(example)

    def since(self, before: Counter[str]) -> list[tuple[str, str, int]]:
        """Return the reasons counted since `before`, each with its latest example and number, but for `NOT_JSON`."""
        more = (self.counts - before).items()
        return [(reason, self.latest[reason], count) for reason, count in more if reason != NOT_JSON]

    def merge(self, other: "Skipped") -> None:
        """Add what was skipped in another part of the corpus."""
        self.counts += other.counts
        self.kinds += other.kinds
        for reason, examples in other.examples.items():
            kept = self.examples.setdefault(reason, [])
            kept += [example for example in examples if example not in kept][: _EXAMPLES_KEPT - len(kept)]

    def lines(self) -> list[str]:
        """Return a line for each reason, with the count and the first examples, to be shown to a user."""
        kinds = [f"{suffix or 'without suffix'} {count:,}" for suffix, count in self.kinds.most_common(_SHOWN)]
        of_kinds = f" ({', '.join(kinds)}{', ...' if len(self.kinds) > _SHOWN else ''})"
        remedy = f'; `read_as="{max(self.kinds, key=self.kinds.__getitem__, default="")}=.txt"` reads them as text'
        return [
            f"{reason}: {count:,}{of_kinds if reason == UNKNOWN else ''}, "
            f"such as {'; '.join(self.examples[reason][:_SHOWN])}{remedy if reason == UNKNOWN else ''}"
            for reason, count in self.counts.items()
        ]

    def as_json(self) -> dict[str, JsonValue]:
        """For each reason the count and the first examples; for unknown kinds also the counts by suffix."""
        kinds: JsonValue = dict(self.kinds.most_common(_KINDS_LISTED))
        return {
            reason: {
                "count": count,
                "examples": [*self.examples[reason]],
                **({"kinds": kinds} if reason == UNKNOWN else {}),
            }
            for reason, count in self.counts.items()
        }


class DocumentBuilder:
    """Makes documents of records by `fields`; with `skip_bad`, broken lines are counted and raise no error."""

    def __init__(self, fields: Fields, skipped: Skipped, *, skip_bad: bool = False) -> None:
        self.fields = fields
        self.skipped = skipped
        self.skip_bad = skip_bad
        self.not_json: set[str] = set()
        """The fields with values that JSON cannot hold."""
        self.never_seen = set(fields.metadata or ())
        """The fields, named for metadata, that no record has had so far."""

    def document(self, record: Mapping[str, object], where: str, file: File, number: int) -> Document:
        """Return the document in a record; CorpusError, naming `where`, without a text.

        Its place is its id if it has none, otherwise the metadata `ORIGIN`, unless no metadata is kept.
        """
        fields = self.fields
        if fields.text not in record:
            raise self.no_text(where, record)
        text = record[fields.text]
        if text is not None and not isinstance(text, str):
            raise CorpusError(f"{where}: the field {fields.text!r} is not text but {type(text).__name__}.")
        name, place = _name(record, fields.id, where) or "", f"{file.id}:{number}"
        identifier = name if name.strip() else f"{file.prefix}{number}"
        metadata = self._metadata(record, where)
        if identifier != place and fields.metadata != ():
            metadata.setdefault(ORIGIN, place)
        title = line_feeds(_name(record, fields.title, where) or "")
        return Document(id=identifier, title=title, text=line_feeds(text or ""), metadata=metadata)

    def whole(
        self, identifier: str, title: str, text: str, metadata: Metadata | None = None, headings: Sequence[Heading] = ()
    ) -> Document:
        """Return a document that is a whole file or page, with the metadata that `fields` keep."""
        kept = self._metadata(metadata or {}, identifier)
        return Document(id=identifier, title=title, text=text, metadata=kept, headings=tuple(headings))

    def markdown(self, file: File, title: str, text: str, metadata: Metadata | None = None) -> Document:
        """Return a whole file of Markdown, titled by default by its first heading of the highest level."""
        text = line_feeds(text)
        headings = tuple(find_headings(text))
        highest = min(headings, key=lambda heading: heading.level, default=None)
        title = " ".join(title.split()) or (highest.title if highest else file.title)
        return self.whole(file.id, title, text, metadata, headings)

    def no_text(self, where: str, names: Iterable[str]) -> CorpusError:
        """Return the error for a record, or a table with these columns, that has no text."""
        return CorpusError(
            f"{where} has no field {self.fields.text!r}; its fields are {some_names([*names])}.{_NAME_ADVICE}"
        )

    def __enter__(self) -> None:
        """Begin a block for one line, object or page; with `skip_bad` it is counted as broken if it is."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not self.skip_bad or not isinstance(error, CorpusError):
            return False
        self.skipped.add(BROKEN_LINES, without_advice(error))
        return True

    def no_json(self, name: str, kind: str) -> None:
        """Count a field of metadata with values that JSON cannot hold, once."""
        self.never_seen.discard(name)
        if name not in self.not_json and len(self.not_json) < _FIELDS_COUNTED:
            self.not_json.add(name)
            self.skipped.add(NOT_JSON, f"{name} ({kind})")

    def _metadata(self, record: Mapping[str, object], where: str) -> dict[str, JsonValue]:
        metadata: dict[str, JsonValue] = {}
        for name in self.fields.metadata_of(record):
            try:
                value = json_value(record[name])
            except TypeError:
                self.no_json(name, type(record[name]).__name__)
                continue
            if value is not None and value != "":
                metadata[name] = value
        self.never_seen.difference_update(record)
        values: list[JsonValue] = [metadata]
        for value in values:
            values += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if len(values) > _MAX_VALUES:
            raise CorpusError(f"{where} has more than {_MAX_VALUES:,} values of metadata; keep fewer with `fields`.")
        return metadata


def check_columns(names: Sequence[str], where: str) -> None:
    """Raise CorpusError, naming `where`, if two columns of a table have one name."""
    if len({*names}) < len(names):
        twice = min(name for name, count in Counter(names).items() if count > 1)
        raise CorpusError(f"{where} has two columns with the name {twice!r}.")


def some_names(names: Sequence[str]) -> str:
    """Return the names of fields for a message: the first of many, since a table may have thousands."""
    return ", ".join([*names[:_NAMES_SHOWN], *(["..."] if len(names) > _NAMES_SHOWN else [])]) or "none"


def without_advice(error: CorpusError) -> str:
    """Return the message of an error as an item of a list: without a full stop and without advice."""
    message = str(error)
    for advice in (SKIP_ADVICE, _NAME_ADVICE, OR_CONVERT, "."):
        message = message.removesuffix(advice)
    return message


def _name(record: Mapping[str, object], field_name: str, where: str) -> str | None:
    """Return an id or a title as text; None if it is missing, which tables may express as NaN."""
    value = record.get(field_name)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, _NOT_NAMES):
        raise CorpusError(f"{where}: the field {field_name!r} must be text or a number, not {type(value).__name__}.")
    return name_text(value)


def name_text(value: object) -> str:
    """Return a title or an id that is no text as text; truth values are those of JSON."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def metadata_to_json(metadata: Metadata) -> str:
    """Return metadata as compact JSON; TypeError, ValueError or RecursionError if it is not JSON."""
    if not metadata:
        return "{}"
    text = _ENCODER.encode(dict(metadata))
    text.encode()  # raises an error for half of a character
    return text


def metadata_from_json(text: str) -> Metadata:
    """Return metadata from JSON; ValueError or RecursionError if it is not a JSON object."""
    metadata = json.loads(text)
    if not isinstance(metadata, dict):
        raise ValueError("not a JSON object")
    return metadata


def _number(value: Decimal) -> JsonValue:
    number = float(value)
    if value.is_finite() and Decimal(repr(number)) != value:
        return str(value)
    return int(number) if number.is_integer() and abs(number) < _MAX_WHOLE else number


_CONVERSIONS: Final[tuple[tuple[Any, Callable[[Any], object]], ...]] = (
    (Decimal, _number),
    ((datetime.date, datetime.time), lambda value: value.isoformat()),
    ((datetime.timedelta, np.datetime64, np.timedelta64, uuid.UUID), str),
    ((np.generic, np.ndarray), lambda value: value.tolist()),
)


def json_value(value: object, *, depth: int = 0) -> JsonValue:
    """Return a value of a record as JSON; null if it is missing, which tables may express as NaN.

    A decimal becomes a number if a double prints the same digits, otherwise text. Raises TypeError for bytes, an
    infinite number, another object, or lists and objects that are nested more than 100 deep.
    """
    if value is None or isinstance(value, (str, int)):
        return value
    converted = next((convert(value) for kinds, convert in _CONVERSIONS if isinstance(value, kinds)), value)
    if converted is not value:
        return json_value(converted, depth=depth)
    if isinstance(value, float) and not math.isinf(value):
        return None if math.isnan(value) else value
    if isinstance(value, Mapping) and depth < _MAX_DEPTH:
        return {str(key): json_value(item, depth=depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and depth < _MAX_DEPTH:
        return [json_value(item, depth=depth + 1) for item in value]
    raise TypeError(f"JSON has no such {type(value).__name__}")

"""Makes documents of records, whatever format they come from.

Knows which fields hold a document, and what to do about a broken record; knows nothing of files.
"""

import copy
import math
from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from ralm.corpus.fields import Fields
from ralm.corpus.left_out import BROKEN_LINES, NOT_JSON, LeftOut
from ralm.corpus.metadata import json_value
from ralm.errors import CorpusError
from ralm.records import Document, Metadata

MEND: Final = " Fix it, or skip such lines with `skip_bad=True`."
"""What the message of a broken line ends with, unless it says another remedy."""
_NAME_IT: Final = " Name the right one with `Fields.text`."
_NOT_NAMES: Final = (bytes, list, dict, tuple, set)
_FIELDS_COUNTED: Final = 1000


class DocumentMaker:
    """Makes documents of records by `fields`, and counts in `left_out` what it leaves out.

    With `skip_bad`, broken lines are counted instead of raising an error.
    """

    def __init__(self, fields: Fields, left_out: LeftOut, *, skip_bad: bool = False) -> None:
        self.fields = fields
        self.left_out = left_out
        self.skip_bad = skip_bad
        self._never_seen = set(fields.metadata or ())
        self._no_json: dict[str, str] = {}

    def document(self, record: Mapping[str, object], where: str, place: str) -> Document:
        """The document in a record, with `place` as id if it has none; a null text counts as empty.

        Raises CorpusError, naming `where` and the existing fields, if the text is missing or not a string.
        """
        fields = self.fields
        if fields.text not in record:
            raise self.no_text(where, record)
        identifier, title, text = record.get(fields.id), record.get(fields.title), record[fields.text]
        if text is not None and not isinstance(text, str):
            raise CorpusError(f"{where}: the field {fields.text!r} is not text but {type(text).__name__}.")
        name = _name(identifier, fields.id, where)
        return Document(
            id=place if name is None else name,
            title=_name(title, fields.title, where) or "",
            text=text or "",
            metadata=self._metadata(record),
        )

    def whole(self, identifier: str, title: str, text: str, metadata: Metadata | None = None) -> Document:
        """A document that is a whole file or page, with those of its metadata that are kept."""
        return Document(id=identifier, title=title, text=text, metadata=self._metadata(metadata or {}))

    def skipping_bad(self) -> "DocumentMaker":
        """This maker, counting broken lines instead of raising an error."""
        tolerant = copy.copy(self)  # shares what was seen and counted
        tolerant.skip_bad = True
        return tolerant

    def no_text(self, where: str, names: Mapping[str, object] | list[str]) -> CorpusError:
        """The error for a record, or a table with these columns, that has no text."""
        text, there = self.fields.text, ", ".join(names) or "none"
        return CorpusError(f"{where} has no field {text!r}; its fields are {there}.{_NAME_IT}")

    def broken_line(self, error: CorpusError) -> None:
        """Count a broken line, or raise its error."""
        if not self.skip_bad:
            raise error
        self.left_out.add(BROKEN_LINES, without_remedy(error))

    def no_json(self, name: str, kind: str) -> None:
        """Count a field of metadata with values that JSON cannot hold, once."""
        self._never_seen.discard(name)
        if name not in self._no_json and len(self._no_json) < _FIELDS_COUNTED:
            self._no_json[name] = kind
            self.left_out.add(NOT_JSON, f"{name} ({kind})")

    @property
    def never_seen(self) -> list[str]:
        """The fields, named for metadata, that no record has had so far."""
        return sorted(self._never_seen)

    @property
    def not_json(self) -> dict[str, str]:
        """The fields with values that JSON cannot hold, and of which type the first of these was."""
        return self._no_json

    def _metadata(self, record: Mapping[str, object]) -> dict[str, JsonValue]:
        """The chosen fields of a record, except missing values and those that JSON cannot hold."""
        metadata: dict[str, JsonValue] = {}
        for name in self.fields.metadata_of(record):
            try:
                value = json_value(record[name])
            except TypeError:
                self.no_json(name, type(record[name]).__name__)
                continue
            if value is not None and value != "":
                metadata[name] = value
        if self._never_seen:
            self._never_seen.difference_update(record)
        return metadata


def check_metadata(never_seen: list[str]) -> None:
    """Raise CorpusError if no record had one of the fields that were named for metadata."""
    if never_seen:
        raise CorpusError(
            f"no document has the field {', '.join(map(repr, never_seen))}, which `Fields.metadata` names; correct it "
            "or leave it out."
        )


def without_remedy(error: CorpusError) -> str:
    """What is wrong, in a list: without a full stop, and without advice for someone whose command has failed."""
    return str(error).removesuffix(MEND).removesuffix(_NAME_IT).removesuffix(".")


def _name(value: object, field_name: str, where: str) -> str | None:
    """An id or a title as text; None if it is missing, which tables may express as NaN."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, _NOT_NAMES):
        raise CorpusError(f"{where}: the field {field_name!r} must be text or a number, not {type(value).__name__}.")
    return str(value)

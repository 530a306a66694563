"""The fields of a record that hold a document. Knows nothing of how a record is read."""

from dataclasses import dataclass
from typing import Annotated

from ralm.options import Option


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The names of the fields with a document's id, title and text. Only the text is required. The default id is the
    line number (from 1) or row number (from 0), the default title is empty."""

    id: Annotated[str, Option("Field with the id of a document.", flag="id-field")] = "id"
    title: Annotated[str, Option("Field with its title.", flag="title-field")] = "title"
    text: Annotated[str, Option("Field with its text.", flag="text-field")] = "text"

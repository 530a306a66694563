"""Which fields of a record hold a document; knows nothing of how a record is read."""

from dataclasses import dataclass
from typing import Annotated

from ralm.options import Option


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Which fields of a record hold a document's id, title and text. Only the text must be there: without an id a
    document is called by its line (from 1) or row (from 0), without a title it has none."""

    id: Annotated[str, Option("Field with the id of a document.", flag="id-field")] = "id"
    title: Annotated[str, Option("Field with its title.", flag="title-field")] = "title"
    text: Annotated[str, Option("Field with its text.", flag="text-field")] = "text"

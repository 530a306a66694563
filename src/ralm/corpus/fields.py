"""The fields of a record that hold a document. Knows nothing of how a record is read."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from ralm.options import Option


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The names of the fields with a document's id, title, text and metadata. Only the text is required. A
    record without an id gets one from its place (`read_documents`); without a title, the title is empty.

    `metadata` names the fields that are kept as metadata, where they exist. None keeps all fields but the id, the title
    and the text; `()` keeps none.
    """

    id: Annotated[str, Option("Field with the id of a document.", flag="id-field")] = "id"
    title: Annotated[str, Option("Field with its title.", flag="title-field")] = "title"
    text: Annotated[str, Option("Field with its text.", flag="text-field")] = "text"
    metadata: Annotated[
        tuple[str, ...] | None,
        Option(
            "Other field to keep with its passages, such as url; repeatable.",
            flag="metadata-field",
            default_said="every other field",
        ),
    ] = None

    def needed(self, names: Iterable[str]) -> list[str]:
        """Those of these names of fields that a document is made of."""
        names = list(names)
        kept = {self.id, self.title, self.text, *self.metadata_of(names)}
        return [name for name in names if name in kept]

    def metadata_of(self, names: Iterable[str]) -> list[str]:
        """Those of these names of fields that are kept as metadata."""
        if self.metadata is None:
            return [name for name in names if name not in (self.id, self.title, self.text)]
        there = set(names)
        return [name for name in self.metadata if name in there]

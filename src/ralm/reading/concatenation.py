"""Concatenation: several documents one after the other before the context of each stride (In-Context RALM, section 8).

The paper leaves open in what order and with what between them. Both published codes that read several documents at once
(In-Context RALM's question answering, REPLUG without ensemble) put the best first; REPLUG's joins them with a newline.
So it is here. REPLUG's cuts what it joined, so that the best may leave no room for the others; here that is a choice.

Works on token ids; knows nothing of how passages were found or how they are scored.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
from pydantic import JsonValue

from ralm.options import Option, check_options
from ralm.protocols import Documents
from ralm.records import Front


@dataclass(frozen=True, slots=True, kw_only=True)
class Concatenation:
    """A context that begins with the first `documents` hits of a row, the best first; the papers' answers read 2.

    Each is cut to the plan's `document_tokens`, or with `cut_together` all of them as one, as REPLUG's code does.

    Raises UsageError if there would be none.
    """

    documents: Annotated[int, Option("Passages that are read together.")] = 2
    cut_together: Annotated[
        bool, Option("Concatenation: cut all passages together to `document_tokens` (REPLUG's code).")
    ] = False

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def config(self) -> dict[str, JsonValue]:
        """All options, by name."""
        return {"reader": "concatenation", **asdict(self)}

    @property
    def hits(self) -> int:
        """How many passages are retrieved for a row."""
        return self.documents

    @property
    def joined(self) -> int:
        """How many passages of the full length stand in one front."""
        return 1 if self.cut_together else self.documents

    def fronts(self, hits: Sequence[tuple[int, float]], documents: Documents) -> Sequence[Front]:
        """One front of all passages. The first is encoded as if it stood alone, with the special tokens that stand
        before it; each further one without them and behind a newline, which counts as part of it. Cut together, they
        are one text with newlines between them."""
        numbers = tuple(number for number, _ in hits[: self.documents])
        contents = [documents.passage(number).contents for number in numbers[1:]]
        if self.cut_together and contents:
            tokens = documents.encode("\n".join([documents.passage(numbers[0]).contents, *contents]))
        else:
            tokens = np.concatenate([documents[numbers[0]], *(documents.encode_next(f"\n{text}") for text in contents)])
        return [Front(tokens, numbers)]

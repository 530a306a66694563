"""Concatenation: several documents in one context, before the text of each stride (In-Context RALM, section 8).

The paper does not say in what order they come or what separates them. Both published codes that read several documents
at once (In-Context RALM's question answering, REPLUG without ensemble) put the best first, and REPLUG's joins them with
a newline; so does this module. REPLUG's code cuts the joined text, so that the best document may leave no room for the
others; here that is an option.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
from pydantic import JsonValue

from ralm.options import Option, check_options
from ralm.protocols import Documents
from ralm.records import PromptPrefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Concatenation:
    """Puts the first `documents` hits of a row before the context, best first; the papers' question answering reads 2.

    Each is cut to the plan's `document_tokens`. With `cut_together` all of them are cut as one text, as in REPLUG's
    code.

    Raises UsageError if `documents` is below 1.
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
        """The number of passages that are retrieved for a row."""
        return self.documents

    @property
    def joined(self) -> int:
        """The number of passages of full length in one prompt prefix."""
        return 1 if self.cut_together else self.documents

    def prompt_prefixes(self, hits: Sequence[tuple[int, float]], documents: Documents) -> Sequence[PromptPrefix]:
        """One prompt prefix of all passages.

        The first is encoded as if it were alone, with the special tokens before it. Each further one is encoded without
        them and after a newline, which counts as part of it. With `cut_together` they are one text, joined by newlines.
        """
        numbers = tuple(number for number, _ in hits[: self.documents])
        contents = [documents.passage(number).contents for number in numbers[1:]]
        if self.cut_together and contents:
            tokens = documents.encode("\n".join([documents.passage(numbers[0]).contents, *contents]))
        else:
            tokens = np.concatenate([documents[numbers[0]], *(documents.encode_next(f"\n{text}") for text in contents)])
        return [PromptPrefix(tokens, numbers)]

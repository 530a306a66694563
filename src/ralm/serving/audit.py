"""The audit log: a line of JSON for each request, with its client and the passages that it got."""

import json
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.records import Passage

ENTRY: Final = "ralm.audit"
"""The key of an entry in the scope of a request."""
_LOG: Final = logging.getLogger("ralm.serving")
_MODE: Final = 0o600


@dataclass(slots=True)
class AuditEntry:
    """What is known of a request; `finish` adds the rest of an answer when the request has ended."""

    model: str | None = None
    status: int | None = None
    """Set if it differs from the one that was sent."""
    passages: list[tuple[str | None, Passage, int]] = field(default_factory=list)
    """Names of indexes, passages and ranks."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompts: JsonValue = None
    answers: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    finish: Callable[["AuditEntry"], None] | None = None

    def add_passages(self, index: str | None, passages: Iterable[Passage]) -> None:
        """Add the passages for one text, the best first."""
        self.passages += [(index, passage, rank) for rank, passage in enumerate(passages, 1)]

    def wrote(self, choice: int, text: str) -> None:
        """Add a piece of an answer."""
        self.answers[choice].append(text)

    def as_json(self, *, texts: bool) -> dict[str, JsonValue]:
        """Return the fields that routes fill in; prompts, answers and the text of passages only with `texts`."""
        if self.finish is not None:
            self.finish(self)
        passages: list[JsonValue] = [
            {
                "index": index,
                "passage": passage.number,
                "document_id": passage.document_id,
                "rank": rank,
                **({"text": passage.text} if texts else {}),
            }
            for index, passage, rank in self.passages
        ]
        shown: dict[str, JsonValue] = {
            "model": self.model,
            "passages": passages,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }
        if texts:
            shown |= {"prompts": self.prompts, "answers": ["".join(texts) for _, texts in sorted(self.answers.items())]}
        return shown


class AuditLog(WatchedFileHandler):
    """A file to which threads append lines, opened again once it was moved away; UsageError if it is not writable."""

    def __init__(self, path: Path, *, texts: bool = False) -> None:
        self._texts = texts
        try:
            super().__init__(path, encoding="ascii")
        except OSError as error:
            raise UsageError(
                f"`audit_log` {path} cannot be written ({(error.strerror or str(error)).lower()}): name a file in a "
                "folder that this user may write to."
            ) from None

    def _open(self) -> Any:
        """Open the file, which this user alone may read."""
        return open(  # the handler closes it
            self.baseFilename, "a", encoding=self.encoding, opener=lambda path, flags: os.open(path, flags, _MODE)
        )

    def write(self, entry: AuditEntry, head: dict[str, JsonValue]) -> None:
        """Append a line; a fault is logged, and the request goes on."""
        try:
            time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            value = {"time": time, **head, **entry.as_json(texts=self._texts)}
            line = json.dumps(value, separators=(",", ":"))
            self.handle(logging.LogRecord("ralm.audit", logging.INFO, "", 0, line, None, None))
        except Exception:  # noqa: BLE001  # a request does not fail by its log
            self.handleError(None)

    def handleError(self, record: logging.LogRecord | None) -> None:  # noqa: ARG002  # as the base class
        """Log that a line was lost."""
        _LOG.error("a line of the audit log %s was lost: %s", self.baseFilename, sys.exc_info()[1])


def entry_of(request: Any) -> AuditEntry:
    """Return the entry of a request."""
    entry: AuditEntry = request.scope[ENTRY]
    return entry

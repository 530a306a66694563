"""The query of a request: the question of the task's document, else the end of the context.

Knows documents of tasks; knows nothing of tokens or of retrieval.
"""

from collections.abc import Mapping
from typing import Any, Final

from ralm.errors import UsageError

QUESTION_FIELDS: Final = (
    "question",
    "query",
    "question_stem",
    "Question",
    "QUESTION",
    "problem",
    "Problem",
    "goal",
    "qtext",
    "input_question",
    "input",
)
"""What the tasks of the harness call a question, the commonest first."""


def question_of(document: object, field: str | None = None) -> str | None:
    """The question of a task's document: the text in `field`, or in the first of `QUESTION_FIELDS` that has text.

    None if the document has no question. Raises UsageError if `field` is given and has no text.
    """
    fields: Mapping[str, Any] = document if isinstance(document, Mapping) else {}
    if field is None:
        return next((fields[name] for name in QUESTION_FIELDS if _is_text(fields.get(name))), None)
    if not _is_text(fields.get(field)):
        names = ", ".join(map(str, fields)) or "none"
        raise UsageError(f'`question_field="{field}"` has no text in a document of this task; its fields are {names}.')
    return str(fields[field])


def holds(prompt: str, question: str) -> bool:
    """Whether a question stands in a prompt, white space aside."""
    return " ".join(question.split()) in " ".join(prompt.split())


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())

"""A retriever of the user's own class, which is named as `module:Class` and made with the open index."""

import hashlib
import importlib
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.protocols import Retriever
from ralm.records import Hits
from ralm.validation import config_of, stable_hits

if TYPE_CHECKING:
    from ralm.retrieval.index import Index


class _OwnRetriever:
    """Another retriever; its `config` names the class and the hash of the file that defines it, too."""

    def __init__(self, retriever: Retriever, record: dict[str, JsonValue]) -> None:
        self._retriever = retriever
        self.config = {**config_of(retriever, "retriever"), **record}
        self.stable = stable_hits(retriever)

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        return self._retriever.retrieve(queries, k)


def own_retriever(name: str, index: "Index") -> Retriever:
    """The retriever `Class(index)` of a `module:Class`, which is looked for in the current folder, too.

    Raises UsageError if there is no such class, if it cannot be made, or if it is no retriever.
    """
    made_by = _load(name)
    try:
        retriever = made_by(index)
    except Exception as error:
        raise _error(name, f"`{made_by.__name__}(index)` failed: {type(error).__name__}: {_line(error)}") from error
    for member in ("config", "retrieve"):
        if not hasattr(retriever, member):
            raise _error(name, f"a retriever needs `{member}`, and {made_by.__name__} has none")
    file = inspect.getsourcefile(made_by)
    code = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).exists() else None
    wrapped: Any = type(made_by.__name__, (_OwnRetriever,), {})  # messages name the user's class
    found: Retriever = wrapped(retriever, {"class": name, "code": code})
    return found


def _load(name: str) -> type:
    module, _, attribute = name.partition(":")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _error(name, f"{module} needs the module {error.name}, which is not installed") from error
        raise _error(name, f"there is no module {error.name}, here or among the installed ones") from error
    except Exception as error:
        raise _error(name, f"{module} cannot be imported: {type(error).__name__}: {_line(error)}") from error
    finally:
        sys.path.remove("")
    if not isinstance(found, type):
        raise _error(name, f"{module} has no class {attribute}")
    return found


def _error(name: str, reason: str) -> UsageError:
    return UsageError(f'`retriever="{name}"`: {reason}.')


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")

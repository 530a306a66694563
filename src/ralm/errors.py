"""Every error that ralm raises on purpose.

A message says what was wrong, where, and what to do about it, in one or two sentences. The command line prints only the
message and exits with `exit_status`. A traceback is always a bug in ralm.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SHORT_MESSAGE: Final = 200


class RalmError(Exception):
    """The base class of all errors that ralm raises on purpose; catch it to catch them all."""

    exit_status = 1


class UsageError(RalmError):
    """An option or argument is invalid; the message names the value and the choices."""

    exit_status = 2


class LengthError(UsageError):
    """A prompt does not fit into the model beside what is to be written; the message says how long it is."""


class InputError(RalmError):
    """An input file is missing, malformed or of the wrong kind."""


class CorpusError(InputError):
    """A source of documents is missing, empty or malformed."""


class TextError(InputError):
    """A text to evaluate is missing, empty, too short or not UTF-8."""


class FolderError(RalmError):
    """A folder that ralm writes and reads (an index, a run) cannot be used."""


class FolderExistsError(FolderError):
    """The output already exists, or another process is writing it."""


class DamagedFolderError(FolderError):
    """A file of the folder is missing, truncated or altered."""


class StorageError(RalmError):
    """The disk is full, or the file cannot be written; what was there before is untouched."""


class ClusterError(RalmError):
    """A Ray cluster is not there, has failed, or one of its machines cannot do the job."""


class ModelError(RalmError):
    """A language model, an encoder or a tokenizer cannot be loaded or used as asked."""


class DeviceMemoryError(ModelError):
    """A device does not hold the texts that a local model is to read together."""


class ServerError(ModelError):
    """A model's server rejects a request, fails or does not answer; `status` is the HTTP status, if it answers."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    @property
    def rejects_request(self) -> bool:
        """Whether the server answers, but rejects this request."""
        return self.status is not None and self.status not in (401, 403, 408, 409, 429) and not self.fails

    @property
    def fails(self) -> bool:
        """Whether the server reports an error of its own; some servers do so for requests that they do not support."""
        return self.status is not None and self.status >= 500


class ChatError(ModelError):
    """Messages cannot be written in the model's chat template, or the model has none."""


class BudgetError(RalmError):
    """The budget of requests is used up; results so far are kept, and a larger budget continues from there."""


class PartError(RalmError):
    """A custom part, such as your own reader, does not keep the contract of its protocol."""


class MissingExtraError(RalmError):
    """An optional dependency is not installed; the message names the extra to install."""


class RalmWarning(UserWarning):
    """A warning that readers of a figure should see; the command line prints it as one line."""


class LibraryWarning(RalmWarning):
    """A call of ralm does not fit the installed version of a package; figures stay right, but may take longer."""


def short_message(error: Exception) -> str:
    """Return the first line of a library's message without its full stop, or the type of an error without a message."""
    return (next(iter(str(error).strip().splitlines()), "") or type(error).__name__)[:_SHORT_MESSAGE].rstrip(". ")


def installed_version(package: str) -> str:
    """Return a package and its version, such as "pyarrow 24.0.0"."""
    from importlib.metadata import version

    return f"{package} {version(package)}"


def warn_of_mismatch(package: str, what: str, cause: Exception | None = None) -> None:
    """Warn (LibraryWarning) that a call of ralm does not fit the installed version of a package."""
    warning = LibraryWarning(
        f"{what}. The call does not fit {installed_version(package)}: this is a fault of ralm, please report it."
    )
    warning.__cause__ = cause
    warnings.warn(warning, stacklevel=3)


@contextmanager
def extra(name: str, what: str, packages: tuple[str, ...]) -> Iterator[None]:
    """Turn a missing package of the extra `name` into MissingExtraError; `what` begins its message ("plots need")."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        raise MissingExtraError(f"{what} the package {error.name}: pip install 'ralm[{name}]'.") from None

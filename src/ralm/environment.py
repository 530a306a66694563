"""Warns of calls that do not fit the installed version of a package."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from ralm.errors import LibraryWarning


def installed_version(package: str) -> str:
    """Return a package and its version, such as "pyarrow 24.0.0"."""
    return f"{package} {version(package)}"


def warn_of_mismatch(package: str, what: str, cause: Exception | None = None) -> None:
    """Warn (LibraryWarning) that a call of ralm does not fit the installed version of a package."""
    warning = LibraryWarning(
        f"{what}. The call does not fit {installed_version(package)}: this is a fault of ralm, please report it."
    )
    warning.__cause__ = cause
    warnings.warn(warning, stacklevel=3)


@contextmanager
def deprecations_shown(package: str) -> Iterator[None]:
    """Turn the deprecations of calls in this block into LibraryWarnings after it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for one in caught:
        if issubclass(one.category, (DeprecationWarning, FutureWarning)):
            first, _, _ = str(one.message).partition("\n")
            warn_of_mismatch(package, f"{package} will soon reject a call of ralm ({first})")
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)

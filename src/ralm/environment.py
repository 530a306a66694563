"""Compares the installed packages with the tested versions, and warns of calls that do not fit an installed version."""

import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from ralm.errors import LibraryWarning

_PACKAGED_LOCK: Final = Path(__file__).with_name("locked.txt")
_LOCK_OF_A_CLONE: Final = Path(__file__).parents[2] / "requirements" / "locked.txt"
_PYTHON: Final = "Python"


def lock_file() -> Path:
    """The constraints file of pip with the newest tested version of every package."""
    return _PACKAGED_LOCK if _PACKAGED_LOCK.exists() else _LOCK_OF_A_CLONE


def untested_versions() -> list[str]:
    """The packages that ralm requires, and Python, if their versions are outside the tested range, with the range:
    "pyarrow 99.0 (tested: 19 to 26.0.1)"."""
    found = []
    for name, lowest in _lowest_versions().items():
        installed, newest = _installed(name), _newest_versions().get(name)
        if installed is None or newest is None:
            continue
        # Python 3.14.9 counts as tested if 3.14 was
        compared = Version(".".join(map(str, installed.release[:2]))) if name == _PYTHON else installed
        if not lowest <= compared or Version(compared.public) > newest:
            found.append(f"{name} {installed} (tested: {lowest} to {newest})")
    return found


def installed_version(package: str) -> str:
    """A package and its version, such as "pyarrow 24.0.0", with the tested versions if this is not one of them."""
    return next((one for one in untested_versions() if one.startswith(f"{package} ")), f"{package} {version(package)}")


def warn_of_mismatch(package: str, what: str, cause: Exception | None = None) -> None:
    """Warn (LibraryWarning) that a call of ralm does not fit the installed version of a package."""
    installed = installed_version(package)
    warning = LibraryWarning(f"{what}. The call does not fit {installed}: this is a fault of ralm, please report it.")
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


@cache
def _lowest_versions() -> dict[str, Version]:
    """The lower bound of each package that the metadata of ralm names, under all extras, and of Python."""
    bounds = {_PYTHON: _lower_bound(SpecifierSet(metadata("ralm")["Requires-Python"]))}
    for one in map(Requirement, requires("ralm") or ()):
        if (lowest := _lower_bound(one.specifier)) is not None:
            bounds[canonicalize_name(one.name)] = lowest
    return {name: bound for name, bound in bounds.items() if bound is not None}


def _lower_bound(specifier: SpecifierSet) -> Version | None:
    return next((Version(bound.version) for bound in specifier if bound.operator == ">="), None)


@cache
def _newest_versions() -> dict[str, Version]:
    """The version of each package in the lock for this Python, and the newest Python that the lock was tested with."""
    newest = {}
    for line in lock_file().read_text(encoding="utf-8").splitlines():
        if line.startswith("# Python: "):
            newest[_PYTHON] = Version(line.split()[-1])
        elif line and not line.startswith("#"):
            one = Requirement(line)
            if one.marker is None or one.marker.evaluate():
                newest[canonicalize_name(one.name)] = Version(next(iter(one.specifier)).version)
    return newest


def _installed(name: str) -> Version | None:
    """The installed version, or None."""
    if name == _PYTHON:
        return Version(platform.python_version())
    try:
        return Version(version(name))
    except PackageNotFoundError:
        return None

"""Requirements, the lock, the environment that tests run in, and what is said of calls that do not fit a library."""

import ast
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools import lock


@pytest.mark.locked
def test_the_environment_is_the_lock() -> None:
    assert [*lock.differences()] == [], "install with `make test`, or renew the lock with `make lock`"


def test_the_lock_has_every_package_that_is_declared_in_an_allowed_version() -> None:
    locked = lock.locked_versions()
    for one in declared():
        versions = locked[canonicalize_name(one.name)]
        assert all(one.specifier.contains(each) for each in versions), (one, versions)


ROOT = Path(__file__).parents[1]
PINNED_ELSEWHERE = {"torch"}
IMPORTED_AS = {"pystemmer": "Stemmer", "faiss-cpu": "faiss", "python-pptx": "pptx", "pyyaml": "yaml"}
NEVER_IMPORTED = {"accelerate", "jinja2"}
"""transformers imports them."""

OWN = {"ralm", "llvmlite", "pydantic_core"}
"""Itself; numba's own; pydantic's own."""


def _project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def declared() -> list[Requirement]:
    project = _project()
    extras = [line for extra in project["optional-dependencies"].values() for line in extra]
    named = [Requirement(line) for line in (*project["dependencies"], *extras)]
    return [one for one in named if one.name != project["name"]]


def test_all_is_every_extra() -> None:
    project = _project()
    extras = project["optional-dependencies"]
    (everything,) = (Requirement(line) for line in extras["all"])
    assert everything.name == project["name"]
    assert everything.extras == extras.keys() - {"all"}


def test_the_lowest_versions_are_those_that_the_package_asks_for() -> None:
    lines = (ROOT / "requirements" / "lowest.txt").read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    lowest = {
        canonicalize_name(one.name): Version(bound.version)
        for one in declared()
        for bound in one.specifier
        if bound.operator == ">="
    }
    found = {canonicalize_name(one.name): Version(next(iter(one.specifier)).version) for one in pinned}
    assert found == {name: version for name, version in lowest.items() if name not in PINNED_ELSEWHERE}


def test_the_dependencies_are_the_packages_that_are_imported() -> None:
    files = (ROOT / "src").rglob("*.py")
    imported = {module for file in files for module in _modules(ast.parse(file.read_text(encoding="utf-8")))}
    names = {canonicalize_name(one.name) for one in declared()}
    needed, allowed = (
        {IMPORTED_AS.get(name, name.replace("-", "_")) for name in some} for some in (names - NEVER_IMPORTED, names)
    )
    assert needed - imported == set()
    assert imported - allowed - set(sys.stdlib_module_names) - OWN == set()


def _modules(tree: ast.Module) -> set[str]:
    """The packages that a module imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return found

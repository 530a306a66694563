"""Requirements, the lock, the environment that tests run in, and what is said of calls that do not fit a library."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ralm import environment
from ralm.errors import LibraryWarning, ModelError
from ralm.lm.local.loading import loading_errors
from tools import lock, python_version


@pytest.mark.locked
def test_the_environment_is_the_lock() -> None:
    assert [*lock.differences()] == [], "install with `make test`, or renew the lock with `make lock`"


def test_a_package_that_the_lock_lacks_is_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("Stray_Package", "1.0"), ("numpy", "1.0")):
        folder = tmp_path / f"{name}-{number}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    wanted = " or ".join(sorted(lock.locked_versions()["numpy"]))
    assert [*lock.differences()] == [f"numpy 1.0 (locked: {wanted})", "stray-package 1.0 (locked: none)"]


def test_the_lock_has_every_package_that_is_declared_in_an_allowed_version() -> None:
    locked = lock.locked_versions()
    for one in declared():
        versions = locked[canonicalize_name(one.name)]
        assert all(one.specifier.contains(each) for each in versions), (one, versions)


def test_the_lock_is_a_file_of_constraints_with_its_date_and_its_pythons() -> None:
    lines = lock.LOCK.read_text(encoding="utf-8").splitlines()
    first, last = lock.supported_pythons()
    assert re.fullmatch(
        r"# A constraints file of pip, written by `make lock` on \d{4}-\d\d-\d\d; do not edit\.", lines[1]
    )
    assert lines[2] == f"# Python: {first} to {last}"
    for line in lines[3:]:
        one = Requirement(line)
        assert [bound.operator for bound in one.specifier] == ["=="], line
        assert not one.extras, "pip rejects extras in constraints"


def test_the_pythons_are_stated_alike() -> None:
    first, last = lock.supported_pythons()
    assert tuple(tuple(map(int, one.split("."))) for one in (first, last)) == (
        python_version.FIRST,
        python_version.LAST,
    )


def test_another_python_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import sys; sys.version_info = (3, 10, 1); exec(open('tools/python_version.py').read())"
    ended = subprocess.run([sys.executable, "-c", script], cwd=lock.ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == (
        f"ralm needs Python 3.11 to 3.14, and {sys.executable} is Python 3.10: "
        "use `make PYTHON=/path/to/another ...`.\n"
    )


def test_what_the_newest_versions_are_installed_from_has_no_upper_bounds() -> None:
    lines = {canonicalize_name(Requirement(line).name): Requirement(line) for line in lock.unbounded()}
    assert lines.keys() >= {canonicalize_name(one.name) for one in declared()}
    assert not [line for line in lines.values() if any(bound.operator.startswith("<") for bound in line.specifier)]
    assert str(lines[canonicalize_name("transformers")].specifier).startswith(">=")


def test_a_call_that_does_not_fit_names_the_version() -> None:
    with pytest.warns(
        LibraryWarning, match=rf"It failed\. The call does not fit pyarrow {version('pyarrow')}: this is"
    ):
        environment.warn_of_mismatch("pyarrow", "It failed")


def test_an_error_of_a_library_names_the_version() -> None:
    with pytest.raises(ModelError) as raised, loading_errors("model", "x"):
        raise TypeError("forward() got an unexpected keyword argument 'cache'")
    assert "forward() got an unexpected keyword" in str(raised.value)
    assert f"TypeError with transformers {version('transformers')}:" in str(raised.value)


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

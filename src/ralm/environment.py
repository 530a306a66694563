"""What an installation of ralm has, and what its extras lack."""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec

from packaging.requirements import Requirement

from ralm import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The versions and the device of an installation; `missing` are packages by extra ("" is ralm itself)."""

    ralm: str
    python: str
    platform: str
    processors: int
    device: str | None
    extras: list[str]
    missing: dict[str, list[str]]
    misfits: list[str]

    @property
    def is_sound(self) -> bool:
        """Whether ralm has what it needs, and every installed package has a version that ralm allows."""
        return not self.misfits and "" not in self.missing


def read_environment() -> Environment:
    """Read which packages are installed, and compare them with the requirements of ralm and of its extras."""
    extras, missing, misfits = set[str](), dict[str, list[str]](), set[str]()
    for requirement in map(Requirement, requires("ralm") or ()):
        extra = str(requirement.marker or "").partition('extra == "')[2].partition('"')[0]
        extras.add(extra)
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            missing.setdefault(extra, []).append(requirement.name)
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            misfits.add(f"{requirement.name} {installed}, which is not {requirement.specifier}")
    return Environment(
        ralm=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        processors=os.cpu_count() or 1,
        device=_device(),
        extras=sorted(extras - missing.keys() - {"", "all"}),
        missing=missing,
        misfits=sorted(misfits),
    )


def _device() -> str | None:
    """Return the version of torch and the device that it finds, None without torch."""
    if find_spec("torch") is None:
        return None
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"torch {torch.__version__}, {name}"

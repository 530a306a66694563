"""Parts of the documentation of this Python: gathering all takes seconds, and so does making anything of it."""

import os
from functools import cache
from pathlib import Path

from ralm.demo import docstrings_of_package, standard_library_documentation
from ralm.records import Document

_PACKAGES = ("asyncio", "email", "unittest")


@cache
def a_third() -> list[Document]:
    """Every third document."""
    return standard_library_documentation()[::3]


@cache
def of_packages() -> list[Document]:
    """That of three packages."""
    library = Path(os.__file__).parent
    return [document for name in _PACKAGES for document in docstrings_of_package(library / name)]

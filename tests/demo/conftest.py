"""The documentation of this Python, which takes seconds to gather."""

import sys
from typing import NamedTuple

import pytest

from ralm.demo import standard_library_documentation
from ralm.records import Document


class Gathered(NamedTuple):
    """The documents, and the modules that were imported meanwhile."""

    documents: list[Document]
    imported: set[str]


@pytest.fixture(scope="session")
def gathered() -> Gathered:
    before = set(sys.modules)
    documents = standard_library_documentation()
    return Gathered(documents, set(sys.modules) - before)


@pytest.fixture(scope="session")
def documents(gathered: Gathered) -> list[Document]:
    return gathered.documents

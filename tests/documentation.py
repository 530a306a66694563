"""A third of the documentation of this Python: gathering all takes seconds, and so does making anything of it."""

from functools import cache

from ralm.demo.documentation import standard_library_documentation
from ralm.records import Document


@cache
def a_third() -> list[Document]:
    """Every third document."""
    return standard_library_documentation()[::3]

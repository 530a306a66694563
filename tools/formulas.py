"""Formulas of the website: blocks of LaTeX become MathML, which browsers show without a script or a network."""

from typing import Any

from latex2mathml.converter import convert


def fence(source: str, *_: Any, **__: Any) -> str:
    """Return the formula of a block, as pymdownx.superfences calls it."""
    return str(convert(source, display="block"))

"""A report as a page that stands alone.

The page is report.html beside this file with the data put in: nothing in it is fetched, and nothing in the text is
markup.
"""

import html
import re
from importlib.resources import files
from typing import Final

from ralm.controls import one_line
from ralm.runs.report import Report
from ralm.runs.run import to_json

_TEMPLATE: Final = "report.html"
_MARK: Final = re.compile(r"\{\{(?:title|data)\}\}")


def report_page(report: Report) -> str:
    """The report as one HTML page."""
    page = files("ralm.runs").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    parts = {
        "{{title}}": html.escape(one_line(report.title)),
        "{{data}}": to_json(report.as_json()).replace("<", "\\u003c"),
    }
    return _MARK.sub(lambda mark: parts[mark[0]], page)  # in one go: a text may hold a mark itself

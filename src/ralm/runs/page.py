"""A report as a self-contained page.

The page is report.html beside this file with the data filled in. It fetches nothing, and text in it is never treated as
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
    return _MARK.sub(lambda mark: parts[mark[0]], page)  # in one pass: the text itself may contain a mark

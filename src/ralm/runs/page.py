"""Reports as self-contained pages.

A page is a template with the data filled in, and with the style and the functions that all pages share (page.css and
page.js beside this file) or that those share which show where tokens came from (tokens.css and tokens.js). It loads
nothing, and text in it is never treated as markup.
"""

import html
import re
from importlib.resources import files
from typing import Final

from pydantic import JsonValue

from ralm.runs.report import Report
from ralm.runs.run import to_json
from ralm.terminal import one_line

_MARK: Final = re.compile(r"\{\{(?:title|style|script|tokens\.css|tokens\.js|data)\}\}")


def report_page(report: Report) -> str:
    """The report of a run as one HTML page."""
    return page("ralm.runs", "report.html", report.title, report.as_json())


def page(package: str, template: str, title: str, data: JsonValue) -> str:
    """A template of a package with its title, the data, and what pages share filled in."""
    parts = {
        "{{title}}": html.escape(one_line(title)),
        "{{style}}": _text("ralm.runs", "page.css"),
        "{{script}}": _text("ralm.runs", "page.js"),
        "{{tokens.css}}": _text("ralm.runs", "tokens.css"),
        "{{tokens.js}}": _text("ralm.runs", "tokens.js"),
        "{{data}}": to_json(data).replace("<", "\\u003c"),
    }
    # in one pass: the data may contain a mark
    return _MARK.sub(lambda mark: parts[mark[0]], _text(package, template))


def _text(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")

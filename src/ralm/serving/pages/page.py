"""The page itself, with a policy that lets a browser run and load nothing else.

It tells nothing of what is served: it asks for that, with the key if the server has one.
"""

import hashlib
import re
from base64 import b64encode
from typing import Final, NamedTuple

from ralm.runs.page import page

_PACKAGE: Final = "ralm.serving.pages"


class ServedPage(NamedTuple):
    """A page, and the headers that go with it."""

    html: str
    headers: dict[str, str]


def server_page(*, has_key: bool) -> ServedPage:
    """The page of a server; `has_key`: requests need one."""
    html = page(_PACKAGE, "page.html", "ralm", {"has_key": has_key})
    policy = (
        f"default-src 'none'; script-src {_digest('script', html)}; style-src {_digest('style', html)}; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return ServedPage(html, headers)


def _digest(tag: str, html: str) -> str:
    """What a policy calls the one element of this name that has no attributes."""
    [inside] = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    return f"'sha256-{b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"

"""Ends with one sentence if this Python is too old or too new for ralm. Any Python can run this file."""

import sys

FIRST, LAST = (3, 11), (3, 14)

if not FIRST <= sys.version_info[:2] <= LAST:
    sys.exit(
        "ralm needs Python %s.%s to %s.%s, and %s is Python %s.%s: use `make PYTHON=/path/to/another ...`."
        % (FIRST + LAST + (sys.executable,) + tuple(sys.version_info[:2]))
    )

"""Exchanges two names on one file system atomically, so that both exist at every moment."""

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

_HERE: Final = -100  # AT_FDCWD: relative paths start at the current folder
_LINUX_EXCHANGE: Final = 2  # RENAME_EXCHANGE of renameat2
_MACOS_SWAP: Final = 2  # RENAME_SWAP of renamex_np


def exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two folders or files; False, with nothing changed, if the system does not support it."""
    names = os.fsencode(first), os.fsencode(second)
    try:
        library = ctypes.CDLL(None)
        if sys.platform == "darwin":
            return library.renamex_np(*names, ctypes.c_uint(_MACOS_SWAP)) == 0
        return library.renameat2(_HERE, names[0], _HERE, names[1], ctypes.c_uint(_LINUX_EXCHANGE)) == 0
    except (AttributeError, OSError):  # no C library, or one without the call
        return False

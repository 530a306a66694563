"""How kernels are compiled: by numba, without Python's lock, and cached on disk if a folder can be written."""

from collections.abc import Callable
from typing import Any

import numba as nb


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function on its first call.

    If neither the installation nor the user's cache folder can be written, every process compiles anew.
    """
    try:
        return nb.njit(cache=True, nogil=True)(function)
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        return nb.njit(nogil=True)(function)

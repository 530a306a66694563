"""Which passages of an index may be found: one boolean mask by passage number, for every retriever.

A passage is left out because of its title (`--forbidden-titles`), its metadata or path (`--where`, `--path`; `filters`
and `columns` beside this file) or a mask of the caller. `ralm.retrieval.retriever.allowed_mask` makes one mask of all.
`distinct` drops near copies among hits; `ralm.corpus.decontamination` leaves out what an index shall not have. A
retriever finds the best of a mask by its own `only(mask_N)`.
"""

import hashlib
from collections.abc import Callable, Iterable

import numpy as np
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.protocols import Retriever
from ralm.records import BoolArray


def narrowed(retriever: Retriever, mask_N: BoolArray) -> Retriever:
    """Return the retriever of the best of the passages of a mask; UsageError if it cannot leave any out."""
    if mask_N.all():
        return retriever
    only: Callable[[BoolArray], Retriever] | None = getattr(retriever, "only", None)
    if only is None:
        raise UsageError(
            f"the retriever {type(retriever).__name__} cannot leave passages out: give the class `only(mask_N)`, which "
            "returns a retriever of the passages of a mask."
        )
    return only(mask_N)


def mask_without(passages: int, numbers: Iterable[int]) -> BoolArray:
    """Return the mask of all passages but those with these numbers."""
    mask_N = np.ones(passages, np.bool_)
    mask_N[np.fromiter(numbers, np.int64)] = False
    return mask_N


def mask_config(mask_N: BoolArray | None) -> dict[str, JsonValue]:
    """Return what identifies a mask in the `config` of a retriever; nothing without one."""
    if mask_N is None:
        return {}
    digest = hashlib.sha256(np.packbits(mask_N).tobytes()).hexdigest()
    return {"only": {"passages": int(np.count_nonzero(mask_N)), "sha256": digest}}

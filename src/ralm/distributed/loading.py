"""The extra `ray`: what needs it is one sentence where it is not installed."""

from contextlib import AbstractContextManager

from ralm.errors import extra


def ray_extra() -> AbstractContextManager[None]:
    """Turn a missing package into MissingExtraError."""
    return extra("ray", "work on a Ray cluster needs", ("ray",))

"""Optional packages: an extra of ralm that is not installed is one sentence, which says what to install."""

from collections.abc import Iterator
from contextlib import contextmanager

from ralm.errors import MissingExtraError


@contextmanager
def extra(name: str, what: str, packages: tuple[str, ...]) -> Iterator[None]:
    """Turn a missing package of the extra `name` into MissingExtraError; `what` says what needs the package."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        raise MissingExtraError(f"{what} the package {error.name}: pip install 'ralm[{name}]'.") from None

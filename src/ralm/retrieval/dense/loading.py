"""Loads dense retrieval, which needs the extra `dense`, or says what to install."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ralm.errors import MissingExtraError
from ralm.protocols import Encoder
from ralm.retrieval.dense.options import EncoderOptions

_PACKAGES: Final = ("sentence_transformers", "faiss")


@contextmanager
def dense_extra() -> Iterator[None]:
    """Turn a missing package of the extra `dense` into MissingExtraError."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        raise MissingExtraError(f"dense retrieval needs the package {error.name}: pip install 'ralm[dense]'.") from None


def load_encoder(options: EncoderOptions, *, device: str = "auto") -> Encoder:
    """An encoder by hub name or folder; its weights are loaded on first use.

    `device`: cpu, cuda, cuda:N, or auto (a GPU if there is one). Raises MissingExtraError at once, and ModelError later
    if the weights cannot be loaded.
    """
    with dense_extra():
        from ralm.retrieval.dense.encoder import SentenceEncoder
    return SentenceEncoder(options, device=device)

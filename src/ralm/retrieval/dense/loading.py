"""Loads dense retrieval, which needs the extra `dense`, or says what to install."""

from contextlib import AbstractContextManager
from typing import Final

from ralm.errors import extra
from ralm.protocols import Encoder
from ralm.retrieval.dense.options import EncoderOptions

_PACKAGES: Final = ("sentence_transformers", "faiss", "torch", "transformers")


def dense_extra() -> AbstractContextManager[None]:
    """Turns a missing package of the extra `dense` into MissingExtraError."""
    return extra("dense", "dense retrieval needs", _PACKAGES)


def load_encoder(options: EncoderOptions, *, device: str = "auto") -> Encoder:
    """An encoder by hub name or folder; its weights are loaded on first use.

    `device`: cpu, cuda, cuda:N, or auto (a GPU if there is one). Raises MissingExtraError at once, and ModelError later
    if the weights cannot be loaded.
    """
    with dense_extra():
        from ralm.retrieval.dense.encoder import SentenceEncoder
    return SentenceEncoder(options, device=device)

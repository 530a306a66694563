"""Loads cross-encoders, which need the extra `dense`, or says what to install."""

from ralm.extras import extra
from ralm.reranking.pairs import CrossEncoder


def load_cross_encoder(name: str, tokens: int | None = None, *, device: str = "auto") -> CrossEncoder:
    """A cross-encoder by hub name or folder: one that `ralm train reranker` made, or any other of
    sentence-transformers.

    `tokens`: how many of its tokens at the end of a prefix it reads; None is what it was trained with, 64 if it does
    not say. `device`: cpu, cuda, cuda:N, or auto (a GPU if there is one). Raises MissingExtraError if the extra `dense`
    is not installed, ModelError if there is no such cross-encoder, UsageError if `tokens` leave no room for a passage.
    """
    with extra("dense", "cross-encoders need", ("sentence_transformers", "torch", "transformers")):
        from ralm.reranking.cross_encoder import load_pair_model
    return load_pair_model(name, tokens, device=device)

"""Dense retrieval: an encoder turns passages and queries into vectors, and FAISS finds the largest inner products.

Needs the extra `dense`; only `options` can be imported without it.
"""

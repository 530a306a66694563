"""Dense retrieval: an encoder makes vectors of passages and queries, FAISS finds the largest inner products.

Needs the extra `dense`; only `options` can be imported without it.
"""

"""Rerankers, which choose among hits."""

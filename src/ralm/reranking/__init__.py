"""Choosing among hits."""

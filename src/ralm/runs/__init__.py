"""Runs on disk: their folders and tables, those that are unfinished, and reports of them."""

"""Runs on disk: their folders and tables, unfinished runs, and reports."""

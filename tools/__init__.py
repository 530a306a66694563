"""Programs for those who work on ralm: not part of the package."""

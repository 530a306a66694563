"""Programs for developers of ralm; not part of the package."""

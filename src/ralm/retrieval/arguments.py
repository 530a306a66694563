"""What every retriever asks of its arguments."""

from ralm.bounds import check_count


def check_k(k: int) -> None:
    """Raise UsageError where k is no number of passages that a query can have."""
    check_count("k", k)

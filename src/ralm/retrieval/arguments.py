"""What every retriever asks of its arguments."""

from ralm.errors import UsageError


def check_k(k: int) -> None:
    """Raise UsageError where k is below 1."""
    if k < 1:
        raise UsageError(f"k must be at least 1, not {k}: how many passages are wanted for a query?")

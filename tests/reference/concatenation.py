"""Several documents in one context as a plain loop: the best first, a newline between them, each cut by itself."""

from collections.abc import Callable, Sequence


def joined(
    texts: Sequence[str],
    with_special: Callable[[str], Sequence[int]],
    without_special: Callable[[str], Sequence[int]],
    cut: int,
) -> list[int]:
    """The token ids of the documents together; only the first has the tokenizer's special tokens before it."""
    ids: list[int] = []
    for place, text in enumerate(texts):
        ids += list(with_special(text) if place == 0 else without_special("\n" + text))[:cut]
    return ids

"""What clients send: pieces of the demonstration's held-out text; and the index beside it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ralm.demo import HELD_OUT, INDEX, build_demo_folder
from ralm.lm import TINY
from ralm.lm.registry import load_tokenizer


@dataclass(frozen=True)
class Demonstration:
    """The held-out text and the folder of the index."""

    text: str
    index: Path

    def prompts(self, count: int, tokens: int) -> list[str]:
        """Return pieces of the text of so many tokens of ralm-tiny, drawn at random."""
        tokenizer = load_tokenizer(TINY)
        ids = tokenizer.encode(self.text)
        begins = np.random.default_rng(0).choice(len(ids) - tokens, count, replace=False)
        return [tokenizer.decode(ids[begin : begin + tokens]) for begin in begins.tolist()]


@contextmanager
def demonstration() -> Iterator[Demonstration]:
    """Make the folder of `ralm demo` for the time of the block."""
    with TemporaryDirectory() as folder:
        build_demo_folder(Path(folder))
        yield Demonstration(Path(folder, HELD_OUT).read_text(encoding="utf-8"), Path(folder, INDEX))

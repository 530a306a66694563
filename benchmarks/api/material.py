"""What all parts read: ralm-tiny and the demonstration, its held-out text and the passages of its index."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ralm.demo.demonstration import HELD_OUT, INDEX, build_demo_folder
from ralm.lm import TINY
from ralm.lm.api.endpoint import ApiOptions
from ralm.lm.api.model import ApiModel
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.registry import ModelOptions, load_language_model, load_local_model
from ralm.reading.plan import PlanOptions, Windows
from ralm.reading.sources import FromRetriever
from ralm.reading.tokens import PreparedText, prepare_text
from ralm.records import IntArray

SERVER_LENGTH = 1022
"""What vLLM reads of ralm-tiny's 1,024 tokens at once; the local model reads as many here."""
PROMPT_TOKENS = 64


@dataclass(frozen=True)
class Material:
    """The model in this process, the held-out text, its source of passages, and the folder of their index."""

    model: LocalLanguageModel
    text: str
    source: FromRetriever
    index: Path

    def prepared(self, strides: int, windows: Windows = "sliding") -> PreparedText:
        """The first strides of the text."""
        options = PlanOptions(windows=windows, max_length=SERVER_LENGTH)
        return prepare_text(self.text, self.model.tokenizer, options, limit_tokens=strides * options.stride)

    def prompts(self, count: int) -> list[IntArray]:
        """Pieces of the text, drawn at random."""
        tokens = self.model.tokenizer.encode(self.text)
        begins = np.random.default_rng(0).choice(len(tokens) - PROMPT_TOKENS, count, replace=False)
        return [tokens[begin : begin + PROMPT_TOKENS] for begin in begins.tolist()]


@contextmanager
def material_of(demo: Path | None) -> Iterator[Material]:
    """The material, from a folder that `ralm demo` made, or else from one that is made now."""
    with TemporaryDirectory() as temporary:
        folder = demo or Path(temporary) / "demo"
        if demo is None:
            build_demo_folder(folder)
        text = (folder / HELD_OUT).read_text(encoding="utf-8")
        index = folder / INDEX
        yield Material(load_local_model(TINY), text, FromRetriever.of_index(index), index)


@contextmanager
def asked_model(name: str, *, at_once: int = 16, likeliest: int | None = None) -> Iterator[ApiModel]:
    """A model behind an API with ralm-tiny's tokenizer, of which no answer is known."""
    with TemporaryDirectory() as folder:
        answers = Path(folder) / "answers.sqlite"
        api = ApiOptions(tokenizer=TINY, requests_at_once=at_once, top_logprobs=likeliest, answers=answers)
        model = load_language_model(name, ModelOptions(api=api))
        assert isinstance(model, ApiModel)
        with model.client:
            yield model


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """Rows with the same columns, as Markdown."""
    print("\n| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(f"{v:,.3g}" if isinstance(v, float) else str(v) for v in row.values()) + " |")
    print(flush=True)


def percent(share: float) -> str:
    """A share as text."""
    return f"{100 * share:.1f}%"

"""The texts on which what was learned is evaluated: documents of the demonstration and of MedQuAD that no corpus holds.

    python -m benchmarks.held_out_texts FOLDER

Writes FOLDER/NAME-dev.txt and FOLDER/NAME-test.txt for three sets of held-out documents: `demo` (Python's
documentation), `shared` and `other` (MedQuAD, topics that its corpus shares, and others). Every second document is for
development, where temperatures are chosen; the others are for the test. Of each document the first 50 words are
taken, so that intervals come from many documents, under a line `= Title =`. MedQuAD must be beside the checkout.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ralm.corpus.sources import read_documents
from ralm.demo.documentation import split_held_out, standard_library_documentation
from ralm.records import Document

MEDQUAD = Path(__file__).parents[2] / "shared" / "data" / "medquad"
DOCUMENT = "^= .* =$"
"""The line that begins a document, for `ralm report --documents`."""
_WORDS = 50
_WORD = re.compile(r"\s*\S+")
_MOST = 40
"""The most documents of a text."""


def sets() -> Iterator[tuple[str, Sequence[Document]]]:
    """The held-out documents of each set, by name."""
    yield "demo", split_held_out(standard_library_documentation())[1]
    yield "shared", list(read_documents(str(MEDQUAD / "heldout_shared_topics.jsonl")))
    yield "other", list(read_documents(str(MEDQUAD / "heldout_other_topics.jsonl")))


def text_of(documents: Iterable[Document], words: int = _WORDS) -> str:
    """The first `words` words of documents, each under its title."""
    return (
        "\n\n".join(f"= {one.title} =\n{''.join(_WORD.findall(one.text)[:words]).strip()}" for one in documents) + "\n"
    )


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, documents in sets():
        order = np.random.default_rng(0).permutation(len(documents)).tolist()
        for half, places in (("dev", order[::2]), ("test", order[1::2])):
            text = text_of(documents[place] for place in places[:_MOST])
            (folder / f"{name}-{half}.txt").write_text(text, encoding="utf-8")
            print(f"{name}-{half}.txt: {len(places[:_MOST])} documents, {len(text.split()):,} words")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

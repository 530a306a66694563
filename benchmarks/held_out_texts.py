"""The texts on which what was learned is evaluated: documents of the demonstration and of MedQuAD that no corpus holds.

    python -m benchmarks.held_out_texts FOLDER

Writes FOLDER/NAME-dev.jsonl and FOLDER/NAME-test.jsonl for three sets of held-out documents: `demo` (Python's
documentation), `shared` and `other` (MedQuAD, topics that its corpus shares, and others). Every second document is for
development, where temperatures are chosen; the others are for the test. Each line has the title and the first 50 words
of a document, so that intervals come from many documents. MedQuAD must be beside the checkout.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.measuring import DATA
from ralm.corpus.sources import read_documents
from ralm.demo import split_held_out, standard_library_documentation
from ralm.records import Document

MEDQUAD = DATA / "medquad"
_WORDS = 50
_WORD = re.compile(r"\s*\S+")
_MOST = 40
"""The most documents of a file."""


def sets() -> Iterator[tuple[str, Sequence[Document]]]:
    """The held-out documents of each set, by name."""
    yield "demo", split_held_out(standard_library_documentation())[1]
    yield "shared", list(read_documents(str(MEDQUAD / "heldout_shared_topics.jsonl")))
    yield "other", list(read_documents(str(MEDQUAD / "heldout_other_topics.jsonl")))


def beginning(text: str, words: int = _WORDS) -> str:
    """The first `words` words of a text, with the white space between them."""
    return "".join(_WORD.findall(text)[:words]).strip()


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, documents in sets():
        order = np.random.default_rng(0).permutation(len(documents)).tolist()
        for half, places in (("dev", order[::2]), ("test", order[1::2])):
            texts = [f"{documents[place].title}\n{beginning(documents[place].text)}" for place in places[:_MOST]]
            lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
            (folder / f"{name}-{half}.jsonl").write_text("".join(lines), encoding="utf-8")
            print(f"{name}-{half}.jsonl: {len(texts)} documents, {sum(len(text.split()) for text in texts):,} words")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

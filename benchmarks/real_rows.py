"""The rows of `benchmarks.real_models`: the inputs that they read, their command lines, and the papers' orders.

Two texts are scored, held-out documents of MedQuAD and of Python's documentation, each beside an index of the rest. Two
sets of questions have a corpus with their gold passages. Mixers are read on questions, too: with BM25's passages, with
random ones, and with conflicts, which are questions of Natural Questions whose gold passage states the answer of
another question; that answer counts there. Paths are relative to the folder of the results. The data must be beside
the checkout.
"""

import csv
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from benchmarks.held_out_texts import MEDQUAD, beginning
from benchmarks.measuring import DATA
from ralm.answering.questions import Question, read_questions
from ralm.corpus.files import lines_of
from ralm.corpus.sources import read_documents
from ralm.demo import split_held_out, standard_library_documentation
from ralm.records import Document
from ralm.retrieval.retrieval_file import RetrievedPassage

_Item = TypeVar("_Item")

INPUTS: Final = Path("inputs")
TEXTS: Final = ("python", "medquad")
CLEANED: Final = "medquad"
"""The text that is also read without near-duplicates: its corpus has most of them."""
QUESTIONS: Final = ("popqa", "nq_oracle")
MIXED: Final = "nq_oracle"
"""The questions that all mixers are read on."""
CONFLICTS: Final = "conflicts"
_SHOTS: Final = 5
_WHOLE: Final = "--words 100000 --fields metadata="
"""The documents of these corpora are passages already."""


class Scale(NamedTuple):
    """How much is read: documents of a text and their words, questions of a set and of a subject of MMLU; and how:
    words of a passage, candidates of rerankers, the block, and the flags of the plan."""

    documents: int
    words: int
    questions: int
    subject_questions: int
    passage_words: int
    candidates: int
    block: int
    plan: str


SCALES: Final = {
    "small": Scale(32, 48, 200, 2, 64, 4, 32, "--stride 16 --max-length 224 --document-tokens 80"),
    "full": Scale(100, 256, 1000, 20, 100, 16, 256, "--stride 4 --max-length 1024 --document-tokens 256"),
}


class Row(NamedTuple):
    """A run: its name (MODEL/MATERIAL/HOW, also its folder) and the arguments of `ralm`, without `--out`."""

    name: str
    line: str


_INDEX: Final = "--index {index}"
_ENSEMBLE: Final = f"{_INDEX} --reader ensemble --documents"
TEXT_ROWS: Final = {
    "none": "",
    "bm25": _INDEX,
    "oracle": f"{_INDEX} --rerank oracle:candidates={{candidates}}",
    "rerank-random": f"{_INDEX} --rerank random:candidates={{candidates}}",
    "ensemble-4": f"{_ENSEMBLE} 4",
    "zero-shot-tiny": f"{_INDEX} --rerank zero-shot:lm=ralm-tiny,candidates={{candidates}}",
    "lexical": f"{_INDEX} --rerank lexical:candidates=16",
    "random": f"{_INDEX} --retriever random",
    "zero-shot": f"{_INDEX} --rerank zero-shot:candidates={{candidates}}",
    "bm25-clean": "--index {index}-clean",
    "ensemble-10": f"{_ENSEMBLE} 10",
    "query-8": f"{_INDEX} --query-tokens 8",
    "query-128": f"{_INDEX} --query-tokens 128",
    "stride-64": f"{_INDEX} --stride 64 --block {{long_block}}",
    "stride-4": f"{_INDEX} --stride 4",
    "zero-shot-other": f"{_INDEX} --rerank zero-shot:lm={{other}},candidates={{candidates}}",
    "ensemble-10-random": f"{_ENSEMBLE} 10 --retriever random",
}
"""What a text is read with, worth most first; the last ones take longest."""
QUESTION_ROWS: Final = {
    "closed": "",
    "gold": "--retrieved {file}",
    "bm25": _INDEX,
    "random": f"{_INDEX} --retriever random",
    "bm25-2": f"{_INDEX} --reader concatenation --documents 2",
    "bm25-5": f"{_INDEX} --reader concatenation --documents 5",
    "ensemble-5": f"{_ENSEMBLE} 5",
    "ensemble-10": f"{_ENSEMBLE} 10",
}
CONFLICT_ROWS: Final = {
    "closed": "",
    "gold": "--retrieved {file}",
    "gold-contrast": "--retrieved {file} --reader ensemble --documents 1 --mixer contrast",
}
MIXER_ROWS: Final = {
    "gold-contrast": CONFLICT_ROWS["gold-contrast"],
    "bm25-4": f"{_ENSEMBLE} 4 --mixer similarity",
    "bm25-4-uniform": f"{_ENSEMBLE} 4 --mixer uniform",
    "bm25-4-posterior": f"{_ENSEMBLE} 4 --mixer posterior",
    "random-4-similarity": f"{_ENSEMBLE} 4 --mixer similarity --retriever random",
}
CHOICE_ROWS: Final = {
    "letter-closed": "--prompt replug-choice",
    "letter-bm25": "--prompt replug-choice --index inputs/wikipedia",
}


class Order(NamedTuple):
    """A paper's order of two rows of one model and material: the first is better than the second."""

    better: str
    worse: str
    source: str


ORDERS: Final = (
    Order("bm25", "none", "ICR Table 1"),
    Order("none", "random", "REPLUG 7.2"),
    Order("zero-shot", "bm25", "ICR Table 1"),
    Order("oracle", "zero-shot", "ICR Figure 7"),
    Order("lexical", "bm25", "ours"),
    Order("zero-shot", "rerank-random", "ICR Table 1"),
    Order("ensemble-10", "bm25", "REPLUG Figure 4, Table 3"),
    Order("ensemble-10", "ensemble-4", "REPLUG Figure 4"),
    Order("ensemble-4", "bm25", "REPLUG Figure 4"),
    Order("none", "ensemble-10-random", "REPLUG 7.2"),
    Order("stride-4", "bm25", "ICR Figure 5"),
    Order("bm25", "stride-64", "ICR Figure 5"),
    Order("bm25", "query-8", "ICR Figure 6"),
    Order("bm25", "query-128", "ICR Figure 6"),
    Order("bm25-clean", "none", "ours: passages that share 13 words with the text left out"),
    Order("zero-shot-tiny", "bm25", "ICR Table 3"),
    Order("oracle", "zero-shot-tiny", "ICR Figure 7"),
    Order("zero-shot-tiny", "rerank-random", "ICR Table 3"),
    Order("zero-shot-other", "bm25", "ICR Table 3"),
    Order("gold", "bm25", "ICR Table 4"),
    Order("bm25", "closed", "ICR Table 4"),
    Order("closed", "random", "ours"),
    Order("bm25-2", "bm25", "ICR Figure 8"),
    Order("bm25-5", "bm25-2", "ICR Figure 8"),
    Order("ensemble-5", "bm25", "REPLUG Table 3"),
    Order("bm25-4-uniform", "bm25-4", "weights by similarity: REPLUG Eq. 3"),
    Order("bm25-4-posterior", "bm25-4", "weights by similarity: REPLUG Eq. 3"),
    Order("random-4-similarity", "closed", "ours: no harm"),
    Order("gold-contrast", "gold", "CAD"),
    Order("letter-bm25", "letter-closed", "REPLUG Table 2"),
)


def rows(models: Path, scale: Scale) -> list[Row]:
    """Return all rows for the models in a folder; a chat model is asked without demonstrations, a base model with 5."""
    folders = sorted(folder for folder in models.iterdir() if (folder / "config.json").exists())
    sizes = {"candidates": scale.candidates, "long_block": max(64, scale.block)}
    every: list[Row] = []
    for model in folders:
        other = next((folder for folder in folders if folder != model), model)
        asks = "--new-tokens 32" if (model / "chat_template.jinja").exists() else f"{{shots}} --shots {_SHOTS}"
        plan = f"--windows blocked --block {scale.block} {scale.plan}"
        materials = [
            *((text, f"eval {{text}} --lm {{lm}} {plan}", TEXT_ROWS) for text in TEXTS),
            *((asked, f"qa {{file}} --lm {{lm}} {asks}", QUESTION_ROWS) for asked in QUESTIONS),
            (MIXED, f"qa {{file}} --lm {{lm}} {asks}", MIXER_ROWS),
            (CONFLICTS, f"qa {{file}} --lm {{lm}} {asks}", CONFLICT_ROWS),
            ("mmlu", "qa inputs/mmlu --lm {lm}", CHOICE_ROWS),
        ]
        for material, command, table in materials:
            corpus = MIXED if material == CONFLICTS else material
            fields = {
                "text": f"{INPUTS}/{material}.jsonl",
                "file": f"{INPUTS}/{material}.json",
                "index": f"{INPUTS}/{corpus}",
                "shots": f"--demonstrations {INPUTS}/{corpus}-shots.json",
                "lm": shlex.quote(str(model)),
                "other": shlex.quote(str(other)),
            }
            every += [
                Row(f"{model.name}/{material}/{how}", f"{command} {options}".format(**fields, **sizes).strip())
                for how, options in table.items()
                if (how != "bm25-clean" or material == CLEANED) and (how != "zero-shot-other" or other != model)
            ]
    return every


def prepare(scale: Scale) -> Iterator[tuple[str, str]]:
    """Write the inputs in the current folder; yield the folder of each index, and its `ralm` command."""
    INPUTS.mkdir(exist_ok=True)
    for name in TEXTS:
        text, corpus = INPUTS / f"{name}.jsonl", INPUTS / f"{name}-corpus.jsonl"
        if not text.exists():
            rest, held_out = _split(name, scale)
            _write_lines(corpus, (asdict(document) for document in rest))
            texts = (f"= {one.title} =\n{beginning(one.text, scale.words)}\n" for one in held_out)
            _write_lines(text, ({"text": one} for one in texts))
        index = f"index {corpus} --words {scale.passage_words} --fields metadata="
        yield f"{INPUTS}/{name}", index
        if name == CLEANED:
            yield f"{INPUTS}/{name}-clean", f"{index} --decontaminate {text}"
    for name in QUESTIONS:
        corpus = INPUTS / f"{name}-corpus.jsonl"
        if not corpus.exists():
            documents = [*read_documents(str(DATA / name / "passages.jsonl"))]
            _write_questions(name, documents, scale.questions)
            _write_lines(corpus, (asdict(document) for document in documents))
        yield f"{INPUTS}/{name}", f"index {corpus} {_WHOLE}"
    _write_subjects(scale.subject_questions)
    wikipedia = shlex.quote(str(DATA / "wikipedia_passages" / "passages.jsonl.gz"))
    yield f"{INPUTS}/wikipedia", f"index {wikipedia} {_WHOLE}"


def _split(name: str, scale: Scale) -> tuple[list[Document], Sequence[Document]]:
    """Return the corpus, and held-out documents that have at least twice the words that are read."""
    if name == "medquad":
        files = ("corpus.jsonl.gz", "heldout_shared_topics.jsonl")
        rest, held_out = ([*read_documents(str(MEDQUAD / file))] for file in files)
    else:
        rest, held_out = split_held_out(standard_library_documentation())
    return rest, _spread([one for one in held_out if len(one.text.split()) >= 2 * scale.words], scale.documents)


def _write_questions(name: str, corpus: Sequence[Document], count: int) -> None:
    """Write questions with their gold passages, spread over the set, others to demonstrate with, and conflicts."""
    file = DATA / name / "questions.jsonl"
    places = [json.loads(line)["gold"] for _, line in lines_of(file)]
    questions = [
        replace(question, passages=tuple(_passage(corpus[place].title, corpus[place].text) for place in gold))
        for question, gold in zip(read_questions(file), places, strict=True)
    ]
    chosen = _spread(questions, count)
    _write_records(name, chosen)
    _write_records(f"{name}-shots", _spread([one for one in questions if one not in chosen], _SHOTS))
    if name == MIXED:
        _write_records(CONFLICTS, _conflicts(chosen))


def _passage(title: str, text: str) -> RetrievedPassage:
    return RetrievedPassage(title=title, text=text)


def _conflicts(asked: Sequence[Question]) -> Iterator[Question]:
    """Yield questions whose first passage states the answer of the next question in place of their own."""
    for question, following in zip(asked, [*asked[1:], asked[0]], strict=True):
        passage, other = question.passages[0], following.answers[0]
        answers = sorted(question.answers, key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, answers)), re.I)
        if pattern.search(passage.text) and not pattern.search(other):
            title, text = (pattern.sub(other.replace("\\", r"\\"), part) for part in (passage.title, passage.text))
            yield replace(question, answers=(other,), passages=(_passage(title, text),))


def _write_records(name: str, questions: Iterable[Question]) -> None:
    records = [
        {
            "id": question.id,
            "question": question.text,
            "answers": [*question.answers],
            "ctxs": [{"title": passage.title, "text": passage.text} for passage in question.passages],
        }
        for question in questions
    ]
    (INPUTS / f"{name}.json").write_text(json.dumps(records, indent=1), encoding="utf-8")


def _write_subjects(count: int) -> None:
    """Write the first questions of every subject of MMLU."""
    (INPUTS / "mmlu").mkdir(exist_ok=True)
    for file in sorted((DATA / "mmlu" / "test").glob("*.csv")):
        out = INPUTS / "mmlu" / file.name
        with file.open(encoding="utf-8", newline="") as lines, out.open("w", newline="") as written:
            csv.writer(written).writerows(islice(csv.reader(lines), count))


def _write_lines(path: Path, records: Iterable[dict[str, object]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def _spread(items: Sequence[_Item], count: int) -> Sequence[_Item]:
    """Return so many items, evenly spread over all of them."""
    return items[:: max(1, len(items) // count)][:count]

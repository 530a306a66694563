"""The rows of `benchmarks.real_models`: the inputs that they read, their command lines, and the papers' orders.

Three texts are scored: held-out documents of MedQuAD, of Python's documentation and of the Encyclopaedia Britannica,
each beside an index of the rest. Three sets of questions have a corpus with their gold passages. Paths are relative to
the folder of the results. The data must be beside the checkout.

Mixers are read on questions, too: with BM25's passages, with random ones, and with conflicts, which are questions of
Natural Questions whose gold passage states the answer of another question; that answer counts there.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from benchmarks.dense import minilm
from benchmarks.held_out_texts import MEDQUAD, beginning
from benchmarks.question_answering import DATA, FIRST_TOKENS, WHOLE, QuestionSet, sets
from ralm.answering.questions import Question
from ralm.corpus.sources import read_documents
from ralm.demo.documentation import split_held_out, standard_library_documentation
from ralm.records import Document
from ralm.retrieval.retrieval_file import RetrievedPassage

_Item = TypeVar("_Item")

INPUTS: Final = Path("inputs")
TEXTS: Final = ("python", "medquad", "britannica")
QUESTIONS: Final = ("popqa", "nq_oracle", "xquad")
_MIXED: Final = "nq_oracle"
"""The questions that all mixers are read on."""
CONFLICTS: Final = "conflicts"
_ENSEMBLE: Final = ("--reader", "ensemble", "--documents")
_WEIGHTS: Final = ("uniform", "posterior")
_CLEANED: Final = "medquad"
"""The text that is also read without near-duplicates: its corpus has most of them."""
_SHOTS: Final = 5
_BRITANNICA_SHARE: Final = 0.02
_MANY: Final = "16"
"""Candidates of a choice that needs no pass of a model: those of the paper."""
_LONG_ENOUGH: Final = 2
"""Documents are held out if they have this many times the words that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is read: documents of a text and their words, questions of a set, questions of an MMLU subject; and how:
    the stride, words and tokens of a passage, tokens of a window and of a block, candidates of rerankers."""

    documents: int
    words: int
    questions: int
    subject_questions: int
    stride: int
    passage_words: int
    document_tokens: int
    max_length: int
    block: int
    candidates: int

    @property
    def plan(self) -> list[str]:
        """The flags of the plan, without the stride."""
        sizes = {"document-tokens": self.document_tokens, "max-length": self.max_length, "block": self.block}
        return ["--windows", "blocked", *(part for name, size in sizes.items() for part in (f"--{name}", str(size)))]


_SMALL: Final = Scale(
    documents=32,
    words=48,
    questions=200,
    subject_questions=2,
    stride=16,
    passage_words=64,
    document_tokens=80,
    max_length=224,
    block=32,
    candidates=4,
)
SCALES: Final = {
    "small": _SMALL,
    "wide": replace(_SMALL, documents=60),
    "full": Scale(
        documents=100,
        words=256,
        questions=1000,
        subject_questions=20,
        stride=4,
        passage_words=100,
        document_tokens=256,
        max_length=1024,
        block=256,
        candidates=16,
    ),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A run: its name (MODEL/MATERIAL/HOW, also its folder) and the arguments of `ralm`, without `--out`. Rows with a
    smaller rank run first."""

    name: str
    line: tuple[str, ...]
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """A paper's order of two rows of one model and material: the first is better than the second."""

    better: str
    worse: str
    source: str


TEXT_ORDERS: Final = (
    Order("bm25", "none", "ICR Table 1"),
    Order("none", "random", "REPLUG 7.2"),
    Order("zero-shot", "bm25", "ICR Table 1"),
    Order("oracle", "zero-shot", "ICR Figure 7"),
    Order("lexical", "bm25", "ours"),
    Order("zero-shot", "rerank-random", "ICR Table 1"),
    Order("ensemble-10", "bm25", "REPLUG Figure 4"),
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
)
QUESTION_ORDERS: Final = (
    Order("gold", "bm25", "ICR Table 4"),
    Order("bm25", "closed", "ICR Table 4"),
    Order("closed", "random", "ours"),
    Order("hybrid", "bm25", "ours"),
    Order("dense", "bm25", "ICR Figure 3"),
    Order("bm25-2", "bm25", "ICR Figure 8"),
    Order("bm25-5", "bm25-2", "ICR Figure 8"),
    Order("ensemble-5", "bm25", "REPLUG Table 3"),
    Order("ensemble-10", "bm25", "REPLUG Table 3"),
    Order("gold-shots", "gold", "ours: 5 demonstrations"),
)
MIXER_ORDERS: Final = (
    *(Order(f"bm25-4-{mixer}", "bm25-4", "weights by similarity: REPLUG Eq. 3") for mixer in _WEIGHTS),
    Order("random-4-similarity", "closed", "ours: no harm"),
    Order("gold-contrast", "gold", "CAD"),
)
CHOICE_ORDERS: Final = (
    Order("letter-bm25", "letter-closed", "REPLUG Table 2"),
    Order("text-bm25", "text-closed", "ours"),
)


def prepare(scale: Scale) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Writes the inputs in the current folder; yields the folder of each index, and its `ralm` command."""
    INPUTS.mkdir(exist_ok=True)
    for name in TEXTS:
        text, corpus = INPUTS / f"{name}.jsonl", INPUTS / f"{name}-corpus.jsonl"
        if not text.exists():
            rest, held_out = _split(name, scale)
            _write_lines(corpus, (asdict(one) for one in rest))
            chosen = _spread(held_out, scale.documents)
            texts = (f"= {one.title} =\n{beginning(one.text, scale.words)}\n" for one in chosen)
            _write_lines(text, ({"text": one} for one in texts))
        index = ("index", str(corpus), "--words", str(scale.passage_words), "--fields", "metadata=")
        yield str(INPUTS / name), index
        if name == _CLEANED:
            yield str(INPUTS / f"{name}-clean"), (*index, "--decontaminate", str(text))
    for one in islice(sets(), len(QUESTIONS)):
        corpus = INPUTS / f"{one.name}-corpus.jsonl"
        if not corpus.exists():
            _write_questions(one, scale.questions)
            _write_lines(corpus, (asdict(document) for document in one.corpus))
        if one.name == _MIXED:
            _write_conflicts(_spread(one.questions, scale.questions))
        encoding = ("--retriever", "both", "--encoder", minilm(), "--encoder-args", f"passage_length={FIRST_TOKENS}")
        yield (
            str(INPUTS / one.name),
            ("index", str(corpus), "--words", str(WHOLE.words), "--fields", "metadata=", *encoding),
        )
    _write_subjects(scale.subject_questions)
    wikipedia = str(DATA / "wikipedia_passages" / "passages.jsonl.gz")
    yield str(INPUTS / "wikipedia"), ("index", wikipedia, "--words", str(WHOLE.words), "--fields", "metadata=")


def _split(name: str, scale: Scale) -> tuple[list[Document], list[Document]]:
    """The corpus, and the held-out documents that are long enough."""
    if name == "medquad":
        parts = [
            list(read_documents(str(MEDQUAD / file))) for file in ("corpus.jsonl.gz", "heldout_shared_topics.jsonl")
        ]
        rest, held_out = parts
    elif name == "python":
        rest, held_out = split_held_out(standard_library_documentation())
    else:
        pages = list(read_documents(str(DATA / "britannica" / "edition4.jsonl.gz")))
        rest, held_out = split_held_out(pages, share=_BRITANNICA_SHARE)
    return rest, [one for one in held_out if len(one.text.split()) >= _LONG_ENOUGH * scale.words]


def _write_questions(asked: QuestionSet, count: int) -> None:
    """Questions with their gold passages, spread over the set, and others to demonstrate with."""
    chosen = _spread(asked.questions, count)
    others = [one for one in asked.questions if one not in chosen]
    for file, some in ((f"{asked.name}.json", chosen), (f"{asked.name}-shots.json", _spread(others, _SHOTS))):
        (INPUTS / file).write_text(json.dumps([_record(one) for one in some], indent=1), encoding="utf-8")


def _write_conflicts(asked: Sequence[Question]) -> None:
    """Questions whose first passage states the answer of the next question in place of their own."""
    records = []
    for one, other in zip(asked, [*asked[1:], asked[0]], strict=True):
        passage, given = one.passages[0], other.answers[0]
        pattern = re.compile("|".join(re.escape(answer) for answer in sorted(one.answers, key=len, reverse=True)), re.I)
        if pattern.search(passage.text) and not pattern.search(given):
            told = given.replace("\\", r"\\")
            title, text = (pattern.sub(told, part) for part in (passage.title, passage.text))
            changed = replace(one, answers=(given,), passages=(RetrievedPassage(title=title, text=text),))
            records.append(_record(changed))
    (INPUTS / f"{CONFLICTS}.json").write_text(json.dumps(records, indent=1), encoding="utf-8")


def _record(question: Question) -> dict[str, object]:
    passages = [{"title": one.title, "text": one.text} for one in question.passages]
    return {"id": question.id, "question": question.text, "answers": [*question.answers], "ctxs": passages}


def _write_subjects(count: int) -> None:
    """The first questions of every subject of MMLU; the demonstrations stay where they are."""
    (INPUTS / "mmlu").mkdir(exist_ok=True)
    for file in sorted((DATA / "mmlu" / "test").glob("*.csv")):
        with (
            file.open(encoding="utf-8", newline="") as lines,
            (INPUTS / "mmlu" / file.name).open("w", newline="") as out,
        ):
            csv.writer(out).writerows(islice(csv.reader(lines), count))


def _write_lines(path: Path, records: Iterable[dict[str, object]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(one) + "\n" for one in records)


def _spread(items: Sequence[_Item], count: int) -> Sequence[_Item]:
    """So many items, evenly spread over all of them."""
    return items[:: max(1, len(items) // count)][:count]


def rows(models: Path, scale: Scale) -> list[Row]:
    """All rows for the models in a folder, those that are worth most first."""
    found: list[Row] = []
    names = sorted(one.name for one in models.iterdir() if (one / "config.json").exists())
    for name in names:
        others = [str(models / other) for other in names if other != name]
        chats = (models / name / "chat_template.jinja").exists()
        for text in TEXTS:
            found += _text_rows(name, models / name, text, scale, others)
        for questions in QUESTIONS:
            found += _question_rows(name, models / name, questions, chats=chats)
        found += _mixer_rows(name, models / name, chats=chats)
        found += _choice_rows(name, models / name)
    return sorted(found, key=lambda row: row.rank)


def _text_rows(name: str, model: Path, text: str, scale: Scale, others: Sequence[str]) -> Iterator[Row]:
    plain = ("eval", str(INPUTS / f"{text}.jsonl"), "--lm", str(model), *scale.plan)
    read = (*plain, "--index", str(INPUTS / text))
    strided, stride = (*read, "--stride", str(scale.stride)), ("--stride", str(scale.stride))
    among = f"candidates={scale.candidates}"
    ensemble = ("--reader", "ensemble", "--documents")
    place = 20 * TEXTS.index(text)

    def row(how: str, rank: int, line: Sequence[str]) -> Row:
        return Row(f"{name}/{text}/{how}", tuple(line), rank)

    yield row("none", place, (*plain, *stride))
    yield row("bm25", place, strided)
    yield row("random", 9 + place, (*strided, "--retriever", "random"))
    if text == _CLEANED:
        yield row("bm25-clean", 12 + place, (*plain, "--index", str(INPUTS / f"{text}-clean"), *stride))
    yield row("zero-shot-tiny", 8 + place, (*strided, "--rerank", f"zero-shot:lm=ralm-tiny,{among}"))
    yield row("oracle", 7 + place, (*strided, "--rerank", f"oracle:{among}"))
    yield row("rerank-random", 7 + place, (*strided, "--rerank", f"random:{among}"))
    yield row("ensemble-4", 7 + place, (*strided, *ensemble, "4"))
    yield row("ensemble-10", 60 + place, (*strided, *ensemble, "10"))
    yield row("lexical", 8 + place, (*strided, "--rerank", f"lexical:candidates={_MANY}"))
    yield row("zero-shot", 10 + place, (*strided, "--rerank", f"zero-shot:{among}"))
    for tokens in ("8", "128"):
        yield row(f"query-{tokens}", 60 + place, (*strided, "--query-tokens", tokens))
    for length in (64, 4):
        block = ("--block", str(length)) if length > scale.block else ()
        yield row(f"stride-{length}", 60 + place, (*read, "--stride", str(length), *block))
    for other in others:
        line = (*strided, "--rerank", f"zero-shot:lm={other},{among}")
        yield row("zero-shot-other", 70 + place, line)
    yield row("ensemble-10-random", 80 + place, (*strided, "--retriever", "random", *ensemble, "10"))


def _question_rows(name: str, model: Path, asked: str, *, chats: bool) -> Iterator[Row]:
    """A chat model is asked through its template without demonstrations, a base model with five."""
    asks, shots, gold, index = _asking(model, asked, asked)
    usual = (*asks, *(("--new-tokens", "32") if chats else shots))
    rank = 5 if asked == "popqa" else 65

    def row(how: str, later: int, *more: str) -> Row:
        return Row(f"{name}/{asked}/{how}", (*usual, *more), rank + later)

    yield row("closed", 0)
    yield row("gold", 0, *gold)
    yield row("bm25", 0, *index)
    yield row("random", 20, *index, "--retriever", "random")
    yield row("dense", 20, *index, "--retriever", "dense")
    yield row("hybrid", 20, *index, "--retriever", "hybrid")
    yield row("bm25-2", 30, *index, "--reader", "concatenation", "--documents", "2")
    yield row("bm25-5", 30, *index, "--reader", "concatenation", "--documents", "5")
    yield row("ensemble-5", 31, *index, *_ENSEMBLE, "5")
    yield row("ensemble-10", 32, *index, *_ENSEMBLE, "10")
    yield Row(f"{name}/{asked}/gold-shots", (*asks, *shots, *gold, "--prompt", "in-context-ralm"), rank + 31)


def _asking(model: Path, asked: str, from_set: str) -> tuple[tuple[str, ...], ...]:
    """The command that asks a file of questions, and the flags of demonstrations, of its own passages, and of BM25's
    passages from a set."""
    file = str(INPUTS / f"{asked}.json")
    shots = ("--demonstrations", str(INPUTS / f"{from_set}-shots.json"), "--shots", str(_SHOTS))
    return ("qa", file, "--lm", str(model)), shots, ("--retrieved", file), ("--index", str(INPUTS / from_set))


def _mixer_rows(name: str, model: Path, *, chats: bool) -> Iterator[Row]:
    """Four passages by every mixer that weighs them, four random ones, and one passage that may contradict."""
    for asked in (_MIXED, CONFLICTS):
        asks, shots, gold, index = _asking(model, asked, _MIXED)
        usual = (*asks, *(("--new-tokens", "32") if chats else shots))
        if asked == CONFLICTS:
            yield Row(f"{name}/{asked}/closed", usual, 66)
            yield Row(f"{name}/{asked}/gold", (*usual, *gold), 66)
        else:
            for mixer in ("similarity", *_WEIGHTS):
                how = "bm25-4" if mixer == "similarity" else f"bm25-4-{mixer}"
                yield Row(f"{name}/{asked}/{how}", (*usual, *index, *_ENSEMBLE, "4", "--mixer", mixer), 67)
            read = ("--retriever", "random", *_ENSEMBLE, "4", "--mixer", "similarity")
            yield Row(f"{name}/{asked}/random-4-similarity", (*usual, *index, *read), 67)
        yield Row(f"{name}/{asked}/gold-contrast", (*usual, *gold, *_ENSEMBLE, "1", "--mixer", "contrast"), 66)


def _choice_rows(name: str, model: Path) -> Iterator[Row]:
    asks = ("qa", str(INPUTS / "mmlu"), "--lm", str(model))
    for score, prompt in (("letter", "replug-choice"), ("text", "replug")):
        for how, read in (("closed", ()), ("bm25", ("--index", str(INPUTS / "wikipedia")))):
            yield Row(f"{name}/mmlu/{score}-{how}", (*asks, *read, "--prompt", prompt), 90)

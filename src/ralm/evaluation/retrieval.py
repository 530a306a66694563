"""Evaluates retrieval against relevance judgements, in the file formats of TREC and of BEIR.

topics      TREC (<top> with <num> and <title>; <DOC> with <DOCNO>), TSV of id and text, JSON Lines of `_id` and `text`
qrels       judgements: TREC (topic, iteration, document, grade), or topic, document and grade, as BEIR's
runs        TREC (topic, Q0, document, rank, score, tag)
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from pydantic import JsonValue

from ralm.corpus import files
from ralm.corpus.formats.records import records_of_lines
from ralm.errors import InputError, UsageError, extra
from ralm.evaluation import RETRIEVAL_MEASURES, intervals
from ralm.evaluation.intervals import Column, UnitTable
from ralm.protocols import Retriever
from ralm.records import DoubleArray, Passages
from ralm.storage.outputs import replaced_file
from ralm.validation import retrieve_checked

Qrels: TypeAlias = Mapping[str, Mapping[str, int]]
"""The grades of the judged documents of each topic; 0 and less are not relevant."""
RetrievalRun: TypeAlias = Mapping[str, Mapping[str, float]]
"""The scores of the documents that were found for each topic; their order is that of the scores."""
_TOPIC: Final = re.compile(
    r"<top>(?:(?!<top>).)*?<num>\s*(?:Number:)?\s*([^\s<]+)(?:(?!<top>).)*?<title>\s*(?:Topic:)?([^<]*)",
    re.DOTALL | re.I,
)
_DOCUMENT_TOPIC: Final = re.compile(r"<DOC>\s*<DOCNO>\s*(\S+)\s*</DOCNO>(.*?)</DOC>", re.DOTALL | re.I)


def read_topics(path: Path | str) -> dict[str, str]:
    """Return the text of each topic (of TREC's the title) by its id, from a file or a folder in BEIR's format.

    Raises:
        InputError: The source is missing, empty or malformed; the message names the line.
    """
    path = _in_folder(path, "queries.jsonl")
    texts: dict[str, str] = {}
    for where, name, text in _topics(path):
        if name.strip() in texts:
            raise InputError(f"{where}: there are two topics {name.strip()!r}.")
        texts[name.strip()] = " ".join(text.split())
    if not texts:
        raise InputError(f"{path} holds no topics: give a file of queries.")
    return texts


def _in_folder(path: Path | str, name: str) -> Path:
    return Path(path, name) if Path(path).is_dir() else Path(path)


def _topics(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the place, the id and the text of each topic."""
    if files.suffix_of(path.name) == ".jsonl":
        for where, record in records_of_lines(path):
            name, text = record.get("_id", record.get("id")), record.get("text", record.get("query"))
            if not isinstance(name, str | int) or not isinstance(text, str | int):
                raise InputError(f"{where} has no `_id` or no `text`; its fields are {', '.join(record)}.")
            yield where, str(name), str(text)
        return
    whole = files.whole_text(path, InputError)
    tagged = _TOPIC.findall(whole) or _DOCUMENT_TOPIC.findall(whole)
    yield from ((str(path), *topic) for topic in tagged)
    for where, line in () if tagged else _lines(path):
        name, tab, text = line.partition("\t")
        if not tab:
            raise InputError(f"{where} is no topic: it has no <top> or <DOC>, and no tab after an id.")
        yield where, name, text


def read_qrels(path: Path | str) -> dict[str, dict[str, int]]:
    """Return the grade of each judged document by topic, from a file or a folder in BEIR's format (its test split).

    Raises:
        InputError: The source is missing, empty or malformed, or a document has two grades; the message names the line.
    """
    path = _in_folder(path, "qrels/test.tsv")
    grades: dict[str, dict[str, int]] = {}
    for place, (where, line) in enumerate(_lines(path)):
        fields = line.split("\t") if "\t" in line.strip() else line.split()
        if place == 0 and fields == ["query-id", "corpus-id", "score"]:
            continue
        if len(fields) not in (3, 4):
            raise InputError(f"{where} has {len(fields)} fields, not topic, iteration, document and grade.")
        topic, document, grade = (field.strip() for field in (fields[0], *fields[-2:]))
        if not re.fullmatch(r"[+-]?\d+", grade):
            raise InputError(f"{where}: the grade {grade[:60]!r} is not a whole number.")
        if grades.setdefault(topic, {}).setdefault(document, int(grade)) != int(grade):
            raise InputError(f"{where}: document {document!r} of topic {topic!r} has two grades.")
    if not grades:
        raise InputError(f"{path} holds no judgements: give a file of qrels.")
    return grades


def read_run_file(path: Path | str) -> dict[str, dict[str, float]]:
    """Return the scores in a file of TREC's format, by topic and document.

    Raises:
        InputError: The file is missing, empty or malformed, or has a document twice; the message names the line.
    """
    path = Path(path)
    run: dict[str, dict[str, float]] = {}
    for where, line in _lines(path):
        fields = line.split()
        if len(fields) != 6:
            raise InputError(f"{where} has {len(fields)} fields, not topic, Q0, document, rank, score and tag.")
        if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", fields[4]):
            raise InputError(f"{where}: the score {fields[4][:60]!r} is not a number.")
        if fields[2] in run.setdefault(fields[0], {}):
            raise InputError(f"{where}: document {fields[2]!r} stands twice in topic {fields[0]!r}.")
        run[fields[0]][fields[2]] = float(fields[4])
    if not run:
        raise InputError(f"{path} is empty.")
    return run


def write_run_file(path: Path | str, run: RetrievalRun, tag: str = "ralm") -> None:
    """Write a run in TREC's format, atomically, with all digits; UsageError if an id is empty or has white space."""
    for name in (tag, *run, *(document for scores in run.values() for document in scores)):
        if len(name.split()) != 1 or name.strip() != name:
            raise UsageError(f"a run file has fields separated by spaces and cannot hold the name {name!r}.")
    with replaced_file(Path(path)) as stream:
        for topic, scores in run.items():
            ranked = sorted(scores.items(), key=lambda pair: -pair[1])
            for rank, (document, score) in enumerate(ranked, 1):
                stream.write(f"{topic} Q0 {document} {rank} {score!r} {tag}\n")


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in files.lines_of(path):
        where = f"{path}, line {number}"
        text = files.utf8_line(line, where, InputError).rstrip("\r\n")
        if text.strip():
            yield where, text


def retrieve_run(
    retriever: Retriever,
    passages: Passages,
    topics: Mapping[str, str],
    k: int = 1000,
    *,
    by_passage: bool = False,
    without_own: bool = False,
) -> dict[str, dict[str, float]]:
    """Retrieve the documents of the k best passages for each topic; a document counts once, at its best passage.

    With `by_passage` every passage counts, and its number is its id. `without_own` leaves out the document with the id
    of the topic, as BEIR does. Where scores (float32) do not fall, the later one is the next smaller number, so that
    all programs rank alike.
    """
    hits = retrieve_checked(retriever, list(topics.values()), k, len(passages))
    names: dict[int, str] = {}
    run: dict[str, dict[str, float]] = {}
    for row, topic in enumerate(topics):
        scores: dict[str, float] = {}
        last = np.float32(np.inf)
        for number, score in hits.of(row):
            if number not in names:
                names[number] = str(number) if by_passage else passages[number].document_id
            name = names[number]
            if name not in scores and not (without_own and name == topic):
                last = min(np.float32(score), np.nextafter(last, np.float32(-np.inf)))
                scores[name] = float(last)
        run[topic] = scores
    return run


@dataclass(frozen=True, slots=True, eq=False)
class JudgedRun:
    """The values of each measure for each judged topic, by name."""

    topics: Sequence[str]
    values: Mapping[str, DoubleArray]

    @property
    def units(self) -> UnitTable:
        """The measures of each topic."""
        columns = {
            name: Column(intervals.Units.each(values_U), "share" if np.isin(values_U, (0, 1)).all() else "mean")
            for name, values_U in self.values.items()
        }
        return UnitTable("topics", "\n".join(self.topics), columns)

    def by_topic(self) -> dict[str, JsonValue]:
        """Return the measures of each topic, by its id."""
        return {
            topic: {name: float(values_U[place]) for name, values_U in self.values.items()}
            for place, topic in enumerate(self.topics)
        }


def parse_measures(measures: str, k: int | None = None) -> list[Any]:
    """Return the measures of ir_measures with these names; UsageError if one is unknown or needs more than `k` hits."""
    with extra("judge", "measures of retrieval need", ("ir_measures",)):
        import ir_measures
    parsed: list[Any] = []
    for name in filter(None, map(str.strip, measures.split(","))):
        try:
            measure = ir_measures.parse_measure(name)
        except (NameError, ValueError, TypeError):
            raise UsageError(f"`measures` has {name!r}, which is unknown; use {RETRIEVAL_MEASURES}, P@5.") from None
        cutoff = measure.params.get("cutoff")
        if cutoff is not None and k is not None and cutoff > k:
            raise UsageError(f"{measure} needs {cutoff:,} documents of a topic: raise `k`, which is {k:,}.")
        parsed.append(measure)
    if not parsed:
        raise UsageError("`measures` is empty: name at least one, such as nDCG@10.")
    return parsed


def judge_run(run: RetrievalRun, qrels: Qrels, measures: str = RETRIEVAL_MEASURES) -> JudgedRun:
    """Judge a run with measures of the library ir_measures; a `Comparison` of several has intervals of the differences.

    Args:
        run: Scores by topic and document.
        qrels: Grades by topic and document. Means are over all its topics; one that `run` lacks counts 0.
        measures: Names of ir_measures, separated by commas.

    Raises:
        UsageError: A measure is unknown, or no topic is judged.
        MissingExtraError: The extra `judge` is missing.
    """
    if not qrels:
        raise UsageError("no topic is judged: give the qrels of these topics.")
    parsed = parse_measures(measures)
    import ir_measures

    place = {topic: place for place, topic in enumerate(qrels)}
    values = {str(measure): np.zeros(len(qrels)) for measure in parsed}
    try:
        for metric in ir_measures.iter_calc(parsed, {**qrels}, {**run}):
            values[str(metric.measure)][place[metric.query_id]] = metric.value
    except (ValueError, RuntimeError) as error:
        raise UsageError(f"ir_measures cannot compute `measures` {', '.join(values)}: {error}") from None
    return JudgedRun([*qrels], values)

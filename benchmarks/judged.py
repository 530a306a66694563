"""Collections with queries and relevance judgements, and measures of rankings against them."""

import html
import json
import re
import tarfile
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path

from ralm.records import Hits, Passage


@dataclass(frozen=True, slots=True)
class Judged:
    """Passages, queries, and for each query the numbers of its relevant passages."""

    passages: list[Passage]
    queries: list[str]
    relevant: list[set[int]]


def xquad(folder: Path) -> Judged:
    """The English part of XQuAD: every paragraph is a passage, and every question is answered in one of them."""
    passages: list[Passage] = []
    queries: list[str] = []
    relevant: list[set[int]] = []
    for article in json.loads((folder / "xquad.en.json").read_text(encoding="utf-8"))["data"]:
        title = article["title"].replace("_", " ")
        for paragraph in article["paragraphs"]:
            number = len(passages)
            passages.append(Passage(number=number, document_id=title, title=title, text=paragraph["context"]))
            queries += [question["question"] for question in paragraph["qas"]]
            relevant += [{number} for _ in paragraph["qas"]]
    return Judged(passages, queries, relevant)


def cacm(folder: Path) -> Judged:
    """CACM: every whole record is a passage; the topics are those with a relevant record.

    The file of judgements writes 55 of its 796 records without leading zeros (CACM-756), so they match no record. They
    count as relevant but not found, as in published figures.
    """
    passages: list[Passage] = []
    with tarfile.open(folder / "cacm.tar.gz") as archive:
        for member in sorted((m for m in archive if m.name.endswith(".html")), key=lambda m: m.name):
            stream = archive.extractfile(member)
            assert stream is not None
            text = html.unescape(re.sub(r"</?[A-Za-z][^>]*>", " ", stream.read().decode("latin-1")))
            name = Path(member.name).stem
            passages.append(Passage(number=len(passages), document_id=name, title="", text=text))
    number_of = {passage.document_id: passage.number for passage in passages}
    judged: dict[int, set[int]] = defaultdict(set)
    for line in (folder / "qrels.txt").read_text().splitlines():
        topic, _, document, judgement = line.split()
        if int(judgement) > 0:
            judged[int(topic)].add(number_of.setdefault(document, -2 - len(number_of)))
    content = (folder / "topics.txt").read_text()
    topics = re.findall(r"<DOCNO>\s*(\d+)\s*</DOCNO>(.*?)</DOC>", content, re.DOTALL)
    asked = [(text, judged[int(topic)]) for topic, text in topics if int(topic) in judged]
    return Judged(passages, [text for text, _ in asked], [numbers for _, numbers in asked])


def mean_recall(hits: Hits, relevant: Sequence[Collection[int]], k: int) -> float:
    """The share of a query's relevant passages among its first k hits, on average."""
    shares = [
        sum(number in numbers for number, _ in hits.of(row)[:k]) / len(numbers) for row, numbers in enumerate(relevant)
    ]
    return sum(shares) / len(shares)


def mean_precision(hits: Hits, relevant: Sequence[Collection[int]], k: int) -> float:
    """The share of relevant passages in a query's first k hits, on average."""
    found = [sum(number in numbers for number, _ in hits.of(row)[:k]) for row, numbers in enumerate(relevant)]
    return sum(found) / k / len(found)


def mean_average_precision(hits: Hits, relevant: Sequence[Collection[int]]) -> float:
    """MAP: the precision at the rank of each relevant passage, 0 for those that are not found."""
    return sum(_average_precision(hits, row, numbers) for row, numbers in enumerate(relevant)) / len(relevant)


def mean_ndcg(hits: Hits, relevant: Sequence[Collection[int]], k: int) -> float:
    """nDCG at k with binary judgements: gains of 1 / log2(1 + rank), relative to those of the best possible ranking."""
    total = 0.0
    for row, numbers in enumerate(relevant):
        gains = [1 / log2(1 + rank) for rank, (number, _) in enumerate(hits.of(row)[:k], 1) if number in numbers]
        total += sum(gains) / sum(1 / log2(1 + rank) for rank in range(1, min(k, len(numbers)) + 1))
    return total / len(relevant)


def _average_precision(hits: Hits, row: int, relevant: Collection[int]) -> float:
    precisions: list[float] = []
    for rank, (number, _) in enumerate(hits.of(row), 1):
        if number in relevant:
            precisions.append((len(precisions) + 1) / rank)
    return sum(precisions) / len(relevant)

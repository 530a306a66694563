"""What an index holds: its counts, sources and settings, and its documents."""

from collections.abc import Iterator
from fnmatch import translate
from itertools import takewhile
from pathlib import Path
from re import compile as compiled
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np
from pydantic import JsonValue

from ralm.corpus.folder import HUB_PREFIX
from ralm.corpus.splitting import BELOW
from ralm.corpus.store import PassageStore
from ralm.errors import UsageError
from ralm.records import BoolArray
from ralm.retrieval.index import Index
from ralm.storage.remote import is_url
from ralm.terminal import path_text


class DocumentSummary(NamedTuple):
    """A document of an index: how many passages it has, and how many characters these have."""

    document_id: str
    title: str
    passages: int
    characters: int


def matching_documents(passages: PassageStore, pattern: str | None = None) -> Iterator[tuple[str, range]]:
    """Return the documents whose ids match a pattern such as `2024/*.md` in NFC (`fnmatch`), with their passages."""
    matches = compiled(translate(normalize("NFC", pattern or "*"))).match
    return (document for document in passages.documents() if matches(normalize("NFC", document[0])))


def id_mask(index: Index, pattern: str) -> BoolArray:
    """Return the mask of the passages of the documents whose ids match; UsageError if there are none."""
    mask_N = np.zeros(len(index.passages), np.bool_)
    for _, numbers in matching_documents(index.passages, pattern):
        mask_N[numbers.start : numbers.stop] = True
    if not mask_N.any():
        raise UsageError(
            f"no document of {index.path} has an id that matches {pattern!r}; see `ralm info --documents`."
        )
    return mask_N


def summarise_documents(passages: PassageStore, pattern: str | None = None) -> Iterator[DocumentSummary]:
    """Yield the documents whose ids match; the title of one is what the titles of its passages begin with."""
    for document_id, numbers in matching_documents(passages, pattern):
        document = [passages[number] for number in numbers]
        levels = zip(*(passage.title.split(BELOW) for passage in document), strict=False)
        same = takewhile(lambda names: len({*names}) == 1, levels)
        characters = sum(len(passage.text) for passage in document)
        yield DocumentSummary(document_id, BELOW.join(names[0] for names in same), len(numbers), characters)


def summarise_index(index: Index) -> dict[str, JsonValue]:
    """Return the counts, size, sources and settings of an index."""
    manifest, settings = index.manifest, index.settings
    recorded: Any = manifest.settings
    sets = settings.vectors
    return {
        "index": path_text(index.path),
        "counts": {**manifest.counts},
        "bytes": sum(file.bytes for file in manifest.files.values()),
        "created": manifest.created,
        "ralm_version": manifest.ralm_version,
        "fingerprint": index.fingerprint,
        "sources": _sources(index),
        "can_sync": settings.files is not None,
        "splitting": recorded.get("splitting"),
        "bm25": settings.bm25 and {
            "analyser": index.analysis.name if index.analysis else None,
            "stemmer": settings.bm25.stemmer,
            "k1": settings.bm25.k1,
            "b": settings.bm25.b,
        },
        "vectors": [
            {"name": name, "default": name == sets.default}
            | sets.sets[name].model_dump(include={"encoder", "dimension", "faiss"})
            for name in index.vectors
        ],
        "skipped": {reason: entry["count"] for reason, entry in recorded.get("skipped", {}).items()},
        "decontaminated": recorded.get("removed", {}).get("counts", {}),
    }  # fmt: skip


def corpus_title(index: Index) -> str:
    """Return the names of an index's sources without their folders; empty if a program built it."""
    sources: Any = _sources(index)
    return ", ".join(Path(source["path"] or source["name"]).name for source in sources)


def _sources(index: Index) -> list[JsonValue]:
    """Return the name of each source, its path if the index lists its files, and whether it is there, if known."""
    record = index.settings.files
    if record is None:
        named: Any = index.manifest.settings.get("sources") or []
        return [{"name": name, "path": None, "found": None} for name in named]
    return [
        {
            "name": source.name,
            "path": source.path,
            "found": None if is_url(source.path) or source.path.startswith(HUB_PREFIX) else Path(source.path).exists(),
        }
        for source in record.sources
    ]

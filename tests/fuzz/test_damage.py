"""Damaged files are rejected, or of no consequence; hostile files of a corpus are left out of their folder.

A damaged file is asked what it holds; `RALM_FUZZ` is how many there are of each kind. Hostile files are made to take
all time or memory, or to break their reader; the document beside them must be found. Each file is read in a process of
its own with bounded time and memory.
"""

import io
import json
import os
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ralm.corpus.sources import Skipped, read_documents
from ralm.corpus.splitting import Splitting, make_passages
from tests.campaign import sampled
from tests.fuzz.damage import RIGHT, bad_mutants, outcome_of
from tests.fuzz.formats import many, packed, table, word
from tests.fuzz.targets import TARGETS, Target

COUNT = int(os.environ.get("RALM_FUZZ", "3"))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_damaged_files_are_refused_or_do_no_harm(target: Target) -> None:
    assert list(bad_mutants(target, COUNT, seed=1)) == []


def understated() -> bytes:
    """A DOCX file whose archive says that its main part has a hundred bytes."""
    whole = word(many(b"<w:p/>"), "word/document.bin")
    with zipfile.ZipFile(io.BytesIO(whole)) as read:
        size = read.getinfo("word/document.bin").file_size
    return whole.replace(size.to_bytes(4, "little"), (100).to_bytes(4, "little"))


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


NAMES = [f"c{number}" for number in range(400_000)]
HOSTILE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "x.docx": ("unpacks to more than 256 MiB", lambda: word(many(b"<w:p/>"))),
    "another-name.docx": (
        "unpacks to more than 64 MiB of XML",
        lambda: word(many(b"<w:p/>", 200 << 20), "word/document.bin"),
    ),
    "another-method.docx": ("unpacks to more than 256 MiB", lambda: word(many(b" "), method=zipfile.ZIP_BZIP2)),
    "understated.docx": ("is not a DOCX file, or damaged", understated),
    "deep.docx": ("is not a DOCX file, or damaged or encrypted: Excessive depth", lambda: word([b"<w:sdt>" * 100_000])),
    "x.jsonl.gz": ("line 1 is longer than 32 MiB", lambda: packed(b'{"text": "', b"x")),
    "x.json.gz": ("has more than 256 MiB", lambda: packed(b'[{"text": "', b"x")),
    "objects.jsonl": ("100,000 values of metadata", lambda: b'{"text": "one", "x": [' + b"{}," * 11_000_000 + b"{}]}"),
    "deep.json": ("recursion depth", lambda: b'[{"text": ' + b"[" * 1_000_000),
    "x.csv.gz": ("line 2 is longer than 32 MiB", lambda: packed(b'text\n"', b"x")),
    "x.tsv.gz": ("line 1 is longer than 32 MiB", lambda: packed(b"1\t", b"x")),
    "x.txt.gz": ("has more than 256 MiB", lambda: packed(b"", b"x")),
    "size.html": ("more than 32 MiB of HTML", lambda: b"<p>x" * 9_000_000),
    "headings.html": ("", lambda: b"<h1> " * 500_000 + b"a"),
    "keys.json": ("100,000 values of metadata", lambda: json.dumps({"text": "", **dict.fromkeys(NAMES, 1)}).encode()),
    "ends.txt": ("", lambda: b"\n" * 20_000_000 + b"x"),
    "line.txt": ("", lambda: b"ww " * 35_000_000),
    "ticks.md": ("", lambda: b"`a` " * 100_000),
    "headings.md": ("", lambda: b"\n" * 60 + b"# a\n" * 200_000 + b"# a" + b" " * 1_000_000 + b"b"),
    "columns.csv": (
        "has no field 'text'; its fields are id, body, c0,",
        lambda: ",".join(["id", "body", *NAMES]).encode() + b"\n" + b"x\n" * 100_000,
    ),
    "rows.csv": (
        "has 1 comma-separated fields where text, c0,",
        lambda: ",".join(["text", *NAMES]).encode() + b"\n" + b"x\n" * 100_000,
    ),
    "twice.parquet": ("has two columns with the name 'text'", lambda: table([("text", ["one"]), ("text", ["two"])])),
    "zone.parquet": (
        "a value that cannot be read: 'Mars/Olympus'",
        lambda: table([("text", ["one"]), ("at", pa.array([0], pa.timestamp("us", "Mars/Olympus")))]),
    ),
    "deep.parquet": ("too deeply nested", lambda: table([("text", ["one"]), ("deep", [nested(60)])])),
}
"""Each with what is said of it; nothing of a file that is large and right."""
QUICK = [name for name in HOSTILE if name.endswith((".md", ".html"))]
SAMPLE = [
    "another-name.docx",
    "x.jsonl.gz",
    "twice.parquet",
    "zone.parquet",
    "keys.json",
    "ends.txt",
    "x.txt.gz",
    *QUICK,
]


def read_folder(said: str, folder: Path) -> Any:
    """The document beside the hostile file, and whether that was left out for the right reason."""
    skipped = Skipped()
    passages = make_passages(read_documents(str(folder), skipped=skipped), Splitting(split="structure"))
    found = [passage.text for passage in passages if passage.document_id == "a.txt"]
    lines = skipped.lines()
    return [found, len(lines) == bool(said), all(said in line for line in lines)]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sampled(HOSTILE, *SAMPLE))
def test_a_hostile_file_is_left_out_alone(name: str, tmp_path: Path) -> None:
    said, make = HOSTILE[name]
    (tmp_path / "a.txt").write_text("beside it")
    (tmp_path / name).write_bytes(make())
    expected = json.dumps([["beside it"], True, True])
    assert outcome_of(partial(read_folder, said), tmp_path, expected) == (RIGHT, "")

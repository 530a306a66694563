"""`sync_index` and `ralm sync`: an index in step with its sources is as one that is built of them."""

import json
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from ralm import make_passages, sync_index
from ralm.corpus.documents import BROKEN_FILES, BROKEN_LINES, Skipped
from ralm.corpus.file_table import FilesRecord, FileTableWriter
from ralm.corpus.sources import known_source, read_documents
from ralm.errors import CorpusError, DamagedFolderError, UsageError
from ralm.records import Document, Passage
from ralm.retrieval.build import build_index
from ralm.retrieval.index import check_index, open_index
from ralm.retrieval.layout import FILES_TABLE
from ralm.retrieval.update import update_index
from tests.campaign import sampled
from tests.cli.program import done, ralm
from tests.fakes import LetterEncoder
from tests.fuzz.mutations import mend

QUERIES = ["sea whale", "hill dog", "town fish bread", "w1 w2", "w3"]
OLD = 1_000_000_000_000_000_000
"""A time in nanoseconds that is long ago, so that size and time alone decide."""


def written(path: Path, text: str, time: int = OLD) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(time, time))


def built(source: Path, out: Path, encoder: LetterEncoder | None = None) -> Path:
    """An index of a folder, as `ralm index` builds it."""
    table = FileTableWriter(out.parent, FilesRecord(sources=(known_source(str(source), in_ids=False),)))
    skipped = Skipped()
    passages = make_passages(read_documents(str(source), skipped=skipped, table=table))
    fields: dict[str, JsonValue] = {"id": "id", "title": "title", "text": "text", "metadata": None}

    def describe() -> dict[str, JsonValue]:
        return {"fields": fields, "skipped": skipped.as_json()}

    build_index(passages, out, encoder=encoder, describe=describe, table=table, force=True)
    return out


def files_of(index: Path) -> dict[str, bytes]:
    """The content of an index, but for its manifest."""
    paths = sorted(path for path in index.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {path.relative_to(index).as_posix(): path.read_bytes() for path in paths}


def hits(index: Path) -> list[list[tuple[int, float]]]:
    opened = open_index(index)
    found = opened.bm25.retrieve(QUERIES, len(opened.passages))
    return [found.of(row) for row in range(len(QUERIES))]


class Folder:
    """A folder of texts and records that is edited at random; each edit gives a file another time."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.draw, self.time = path, random.Random(seed), OLD
        for _ in range(30):
            self.add()

    def words(self) -> str:
        return " ".join(self.draw.choices(["sea", "whale", "hill", "dog", "town", "fish", "bread", "w1", "w2"], k=9))

    def write(self, path: Path) -> None:
        self.time += 1
        if path.suffix == ".jsonl":
            ids = self.draw.sample(range(1000), 4)
            rows = [{"id": f"{path.stem}-{one}", "text": self.words()} for one in ids]
            rows.append({"text": self.words()})
            written(path, "".join(json.dumps(row) + "\n" for row in rows), self.time)
        else:
            written(path, self.words(), self.time)

    def add(self) -> None:
        folder = self.path / self.draw.choice(["", "a", "b/c"])
        self.write(folder / f"{self.draw.randrange(1 << 30)}{self.draw.choice(['.txt', '.md', '.jsonl'])}")

    def edit(self) -> None:
        files = sorted(one for one in self.path.rglob("*") if one.is_file())
        path = self.draw.choice(files)
        match self.draw.choice(["add", "write", "row", "remove", "move", "touch"]):
            case "add":
                self.add()
            case "row" if path.suffix == ".jsonl":
                rows = path.read_text().splitlines()
                rows[self.draw.randrange(len(rows))] = json.dumps({"text": self.words()})
                self.time += 1
                written(path, "\n".join(rows), self.time)
            case "remove" if len(files) > 9:
                path.unlink()
            case "move":
                path.rename(path.with_name(f"moved-{path.name}"[-60:]))
            case "touch":
                self.time += 1
                os.utime(path, ns=(self.time, self.time))
            case _:
                self.write(path)


@pytest.mark.parametrize("seed", sampled(range(2), 0))
def test_random_edits(tmp_path: Path, seed: int) -> None:
    """120 edits in 12 rounds: each time the index is byte for byte one that is built anew."""
    folder, encoder = Folder(tmp_path / "corpus", seed), LetterEncoder()
    index = built(folder.path, tmp_path / "index", encoder)
    for _ in range(12):
        for _ in range(10):
            folder.edit()
        before = hits(index)
        planned, _ = sync_index(index, make_passages, dry_run=True)
        assert hits(index) == before
        changes, _ = sync_index(index, make_passages, encoder=lambda _name: encoder)
        assert changes == planned
        anew = built(folder.path, tmp_path / "anew", encoder)
        assert files_of(index) == files_of(anew)
        assert hits(index) == hits(anew)
        assert open_index(index).manifest.counts == open_index(anew).manifest.counts
        assert open_index(index).fingerprint == open_index(anew).fingerprint
        again, manifest = sync_index(index, make_passages)
        assert not again
        assert manifest == open_index(index).manifest
    assert check_index(index) == []


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    written(folder / "sea.txt", "The whales sing in the sea.")
    written(folder / "hill.md", "Sheep graze on the hill.")
    written(folder / "more.jsonl", '{"id": "dog", "text": "A dog barks."}\n{"text": "The town sleeps."}\n')
    return folder


def counts(index: Path, *arguments: object) -> str:
    return done("sync", index, *arguments).out.splitlines()[0]


def test_the_command_remembers_what_was_read_and_how(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "titles").write_text("hill\n")
    monkeypatch.chdir(tmp_path)
    done("index", "corpus", "--words", "4", "--fields", "metadata=", "--forbidden-titles", "titles", "--out", "index")
    (corpus / "hill.md").write_text("Sheep sleep on the hill in spring.")
    written(corpus / "fish.txt", "Fish swim in the sea, and whales do.")
    monkeypatch.chdir("/")
    index = tmp_path / "index"
    assert counts(index, "--dry-run") == "documents: 2 added, 0 replaced, 0 removed, 3 unchanged"
    assert counts(index) == "documents: 1 added, 0 replaced, 0 removed, 3 unchanged"
    assert counts(index) == "documents: 0 added, 0 replaced, 0 removed, 4 unchanged"
    assert "no passage" in done("search", index, "sheep").out or "sheep" not in done("search", index, "sheep").out
    (tmp_path / "titles").write_text("hill\ndale\n")
    refused = ralm("sync", index)
    assert "titles changed since" in refused.err


def test_sources_that_contain_each_other(corpus: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    done("index", corpus, "--out", index)
    for part in (corpus / "sea.txt", tmp_path):
        assert "contain the same files" in ralm("sync", index, part).err
    missing = ralm("sync", index, tmp_path / "othr")
    assert (missing.status, "othr does not exist" in missing.err) == (1, True)


def test_a_source_that_is_gone(corpus: Path, tmp_path: Path) -> None:
    index = built(corpus, tmp_path / "index")
    update_index(index, [Passage(0, "own", "", "An owl.")])
    before = hits(index)
    corpus.rename(tmp_path / "away")
    with pytest.raises(CorpusError, match=r"corpus does not exist; nothing was changed. `allow_missing=True` removes"):
        sync_index(index, make_passages)
    corpus.mkdir()
    with pytest.raises(CorpusError, match="has no file any more"):
        sync_index(index, make_passages)
    assert hits(index) == before
    changes, manifest = sync_index(index, make_passages, allow_missing=True)
    assert sorted(changes.removed) == ["dog", "hill.md", "more.jsonl:2", "sea.txt"]
    assert manifest.counts["documents"] == 1


def test_files_that_cannot_be_read_keep_their_documents(corpus: Path, tmp_path: Path) -> None:
    index = built(corpus, tmp_path / "index")
    written(corpus / "sea.txt", "", OLD + 1)
    (corpus / "sea.txt").write_bytes(b"\xff\xfd\xfc not UTF-8")
    written(corpus / "hill.md", "Sheep sleep.", OLD + 1)
    changes, _ = sync_index(index, make_passages)
    assert (changes.changed, changes.removed) == (["hill.md"], [])
    assert "sea.txt" in str(changes.skipped.lines())
    written(corpus / "sea.txt", "The whales dive.", OLD + 2)
    assert sync_index(index, make_passages)[0].changed == ["sea.txt"]


def test_what_cannot_be_read_now_is_listed(corpus: Path, tmp_path: Path) -> None:
    """By every sync, and by what the manifest records, whether the files changed or not."""

    def unreadable(index: Path) -> int:
        recorded: Any = open_index(index).manifest.settings["skipped"]
        return int(recorded.get(BROKEN_FILES, {}).get("count", 0))

    written(corpus / "bad.txt", "", OLD)
    (corpus / "bad.txt").write_bytes(b"caf\xe9")
    os.utime(corpus / "bad.txt", (OLD, OLD))
    written(corpus / "lines.jsonl", '{"text": "Snow"}\nbroken\n', OLD)
    index = built(corpus, tmp_path / "index")
    for _ in range(2):
        changes, _ = sync_index(index, make_passages)
        assert not changes
        assert {reason: changes.skipped.counts[reason] for reason in (BROKEN_FILES, BROKEN_LINES)} == {
            BROKEN_FILES: 1,
            BROKEN_LINES: 1,
        }
        assert "bad.txt" in changes.skipped.examples[BROKEN_FILES][0]
        assert unreadable(index) == 1
    written(corpus / "hill.md", "Sheep sleep.", OLD + 1)
    changes, _ = sync_index(index, make_passages)
    assert changes.skipped.counts[BROKEN_FILES] == unreadable(index) == 1
    assert files_of(index) == files_of(built(corpus, tmp_path / "anew"))
    written(corpus / "bad.txt", "mended", OLD + 2)
    changes, _ = sync_index(index, make_passages)
    assert (changes.added, changes.skipped.counts[BROKEN_FILES], unreadable(index)) == (["bad.txt"], 0, 0)
    assert changes.skipped.counts[BROKEN_LINES] == 1
    (corpus / "new.txt").write_bytes(b"caf\xe9")
    for _ in range(2):
        changes, _ = sync_index(index, make_passages)
        assert (not changes, changes.skipped.counts[BROKEN_FILES], unreadable(index)) == (True, 1, 1)
    (corpus / "new.txt").unlink()
    assert sync_index(index, make_passages)[0].skipped.counts[BROKEN_FILES] == unreadable(index) == 0


def test_files_are_compared_by_content_unless_size_and_time_are_the_same(corpus: Path, tmp_path: Path) -> None:
    """Also if a time goes backwards, or a file was just written."""
    (corpus / "hill.md").write_text("Sheep graze on the hill!")
    index = built(corpus, tmp_path / "index")
    found = (corpus / "hill.md").stat()
    (corpus / "hill.md").write_text("Sheep sleep on the hill!")
    os.utime(corpus / "hill.md", ns=(found.st_mtime_ns, found.st_mtime_ns))  # as within one tick of the clock
    written(corpus / "sea.txt", "The whales dive in the sea.", OLD - 5)
    assert sorted(sync_index(index, make_passages)[0].changed) == ["hill.md", "sea.txt"]


def test_a_file_that_changes_while_it_is_read(corpus: Path, tmp_path: Path) -> None:
    index = built(corpus, tmp_path / "index")
    before = hits(index)
    written(corpus / "sea.txt", "The whales dive.", OLD + 1)

    def split(documents: Iterable[Document]) -> Iterator[Passage]:
        for passage in make_passages(documents):
            written(corpus / "sea.txt", "The whales dive deep.", OLD + 2)
            yield passage

    with pytest.raises(CorpusError, match=r"sea.txt changed while it was read; nothing was changed"):
        sync_index(index, split)
    assert hits(index) == before


def test_ids_in_two_files(corpus: Path, tmp_path: Path) -> None:
    index = built(corpus, tmp_path / "index")
    written(corpus / "again.jsonl", '{"id": "dog", "text": "A dog sleeps."}\n')
    with pytest.raises(CorpusError, match="'dog' is in .*more.jsonl and in another file; nothing was changed"):
        sync_index(index, make_passages)
    (corpus / "again.jsonl").unlink()
    update_index(index, [Passage(0, "new.txt", "", "By hand.")])
    written(corpus / "new.txt", "From a file.")
    sync_index(index, make_passages)
    assert [one.text for one in open_index(index).passages if one.document_id == "new.txt"] == ["From a file."]


def test_an_index_without_a_table(tmp_path: Path) -> None:
    build_index([Passage(0, "a", "", "An owl.")], tmp_path / "index")
    with pytest.raises(UsageError, match="does not list its files"):
        sync_index(tmp_path / "index", make_passages)


def test_a_table_with_a_broken_line(corpus: Path, tmp_path: Path) -> None:
    index = built(corpus, tmp_path / "index")
    table = index / FILES_TABLE
    table.write_bytes(table.read_bytes() + b'["more.jsonl:1", 3]\n')
    mend(index)
    assert check_index(index) == [f"{table} is damaged; build the index again."]
    with pytest.raises(DamagedFolderError, match=r"is damaged; build the index again\.$"):
        sync_index(index, make_passages)


@pytest.mark.filterwarnings("ignore::ralm.errors.RalmWarning")
def test_an_id_that_a_file_repeats(corpus: Path, tmp_path: Path) -> None:
    rows = ({"id": name, "text": f"{name} and {number}"} for number, name in enumerate("aba"))
    written(corpus / "again.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    index = built(corpus, tmp_path / "index")
    written(corpus / "sea.txt", "The whales dive.", OLD + 1)
    assert sync_index(index, make_passages)[0].changed == ["sea.txt"]
    assert files_of(index) == files_of(built(corpus, tmp_path / "anew"))


def test_rows_that_change_places(corpus: Path, tmp_path: Path) -> None:
    index = built(corpus, tmp_path / "index")
    rows = [f'{{"id": "r{number}", "text": "Row {number} of whales"}}\n' for number in range(9)]
    written(corpus / "rows.jsonl", "".join(rows))
    sync_index(index, make_passages)
    written(corpus / "rows.jsonl", "".join([*reversed(rows), '{"id": "last", "text": "Fish."}\n']), OLD + 1)
    assert sync_index(index, make_passages)[0].added == ["last"]
    assert files_of(index) == files_of(built(corpus, tmp_path / "anew"))

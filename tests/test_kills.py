"""Whenever the program is killed, the old or the new result stands, whole, and the next run leaves nothing else.

`make test-all KILLS=50` kills every command at 50 random moments, `make test` two commands at a few. Half of them are
drawn from the time that it takes, and half from its events of the file system: most that can go wrong lies between two.
"""

import csv
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ralm.records import Passage
from ralm.retrieval.build import build_index
from ralm.retrieval.dense.options import EncoderOptions, load_encoder
from ralm.retrieval.index import INDEX_KIND, open_index
from ralm.storage.manifest import read_manifest
from ralm.storage.outputs import MANIFEST, FolderKind, restore
from tests.campaign import sampled
from tests.cli.program import MODEL_LENGTH, STORIES, TEXT
from tests.killed import Killed
from tests.tiny_encoders import save_tiny_bert
from tests.tiny_models import save_tiny_model
from tests.training.made_signals import save_signals

MOMENTS = int(os.environ.get("RALM_KILLS", "2"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not Path("/proc").exists(), reason="processes are counted in /proc"),
]

LENGTHS = " ".join(MODEL_LENGTH)
SHORT = "--prefix-tokens 8 --query-tokens 8 --sequence-tokens 24 --document-tokens 24"
QUICK = "--steps 12 --batch 4 --evaluate-every 4 --learning-rate 1e-3"
PAIRS = "--tokens 12 --max-length 32"

COMMANDS = {
    "index": ("index corpus.jsonl", "--words 9", "--words 10"),
    "dense": ("index corpus.jsonl --retriever dense --encoder bert", "--words 9", "--words 10"),
    "run": (f"eval text.txt --lm lm --index index --baseline {LENGTHS}", "--stride 8", "--stride 4"),
    "signals": (f"signals corpus.jsonl --index index --lm lm --examples 30 {SHORT}", "--seed 1", "--seed 2"),
    "sweep": (f"eval text.txt --lm lm --index index {LENGTHS}", "--over stride=8,16", "--over stride=4,8"),
    "retriever": (f"train retriever signals --index taught {QUICK}", "--seed 1", "--seed 2"),
    "reranker": (f"train reranker signals --index taught --init bert {PAIRS} {QUICK}", "--seed 1", "--seed 2"),
}
"""Each command, what makes an older result of it, and what makes the one that is killed."""


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    chosen = {kind for kind in COMMANDS if any(f"[{kind}-" in item.nodeid for item in request.session.items)}
    folder = tmp_path_factory.mktemp("killed")
    rows = [
        {"id": f"{name}-{number}", "title": title, "text": f"{text} {number}"}
        for number in range(60)
        for name, title, text in STORIES
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "text.txt").write_text(TEXT)
    save_tiny_bert(folder / "bert")
    save_tiny_model("gpt2", folder / "lm")
    save_taught_index(folder)
    warm = [["index", "corpus.jsonl", "--words", "10", "--out", "index"]]
    for name, (command, old, new) in COMMANDS.items():
        if name in chosen:
            warm += [f"{command} {old} --out old-{name}".split(), f"{command} {new} --out new-{name}".split()]
    program = Killed(folder, warm)
    yield program
    program.programs.close()


def save_taught_index(folder: Path) -> None:
    """An index with vectors, and signals of it by which every other passage helps more."""
    passages = [Passage(number, name, title, text) for number, (name, title, text) in enumerate(STORIES)]
    build_index(passages, folder / "taught", encoder=load_encoder(EncoderOptions(encoder=str(folder / "bert"))))
    queries = [TEXT[begin : begin + 30] for begin in range(0, 600, 30)]
    candidates = [[*range(len(STORIES))]] * len(queries)
    helped = [[-1.0 - number % 2 for number in range(len(STORIES))]] * len(queries)
    save_signals(folder / "signals", open_index(folder / "taught").fingerprint, queries, candidates, helped)


@pytest.mark.parametrize("force", [False, True], ids=["", "force"])
@pytest.mark.parametrize("kind", sampled(COMMANDS, "index", "run"))
def test_whenever_it_is_killed(program: Killed, kind: str, force: bool) -> None:
    command, old, new = COMMANDS[kind]
    out = program.folder / "out"
    arguments = f"{command} {new} --out out/result {'--force' if force else ''}".split()
    older = f"{command} {old} --out out/result --force".split()
    assert program.answer(older).status == 0, program.errors
    whole = program.answer([*arguments, "--force"])
    assert whole.status == 0, program.errors
    allowed = [content(program.folder / f"new-{kind}"), content(program.folder / f"old-{kind}")]
    assert content(out / "result") == allowed[0]
    for moment in range(MOMENTS):
        if force:
            assert program.answer(older).status == 0, program.errors
        else:
            clear(out)
        at: dict[str, Any] = {"seconds": program.random.uniform(0, whole.seconds)}
        if moment % 2:
            at = {"event": program.random.randint(1, whole.events)}
        killed = program.answer(arguments, **at)
        assert killed.status in (-9, 0), (at, program.errors)
        restore(out / "result")  # as opening it does
        stands = (out / "result").exists()
        assert stands or not force, at
        if stands:
            assert content(out / "result") in allowed[: 1 + force], at
        again = program.answer(arguments).status
        assert again == (1 if stands and not force else 0), (at, program.errors)
        assert content(out / "result") == allowed[0], at
        assert [path.name for path in out.iterdir()] == ["result"], at
    clear(out)


def test_whenever_an_update_is_killed(program: Killed) -> None:
    """The index is as before the update or as after it, and the next update leaves nothing else."""
    folder, index = program.folder, program.folder / "out" / "result"
    added = [{"id": f"more-{number}", "text": TEXT[number:]} for number in range(40)]
    (folder / "more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in added))
    update = ["sync", "out/result", "more.jsonl", "--remove-id", "sea-1"]

    def renew() -> None:
        clear(folder / "out")
        shutil.copytree(folder / "before", index)

    older = ["index", "corpus.jsonl", "--words", "9", "--out", "before"]
    assert program.answer(older).status == 0, program.errors
    (folder / "out").mkdir()
    renew()
    whole = program.answer(update)
    assert whole.status == 0, program.errors
    after, documents = content(index), read_manifest(index, kind=INDEX_KIND).counts["documents"]
    for moment in range(3 * MOMENTS):
        renew()
        at: dict[str, Any] = {"seconds": program.random.uniform(0, whole.seconds)}
        if moment % 2:
            at = {"event": program.random.randint(whole.events * 3 // 4, whole.events)}  # files are moved there
        killed = program.answer(update, **at)
        assert killed.status in (-9, 0), (at, program.errors)
        happened = read_manifest(index, kind=INDEX_KIND).counts["documents"] == documents
        again = program.answer(update).status
        assert again == (1 if happened else 0), (at, program.errors)  # then the id is gone already
        assert content(index) == after, at
        assert [path.name for path in (folder / "out").iterdir()] == ["result"], at
    clear(folder / "out")


def test_whenever_a_sync_is_killed(program: Killed) -> None:
    """The index is as before or as after, and the next sync leaves nothing else."""
    folder, index = program.folder, program.folder / "out" / "result"
    corpus = [folder / "corpus" / f"{number}.txt" for number in range(20)]
    (folder / "corpus").mkdir()
    for number, path in enumerate(corpus):
        path.write_text(f"The whales sing {number} in the deep blue sea.")
    assert program.answer(["index", "corpus", "--out", "unsynced"]).status == 0, program.errors
    for number, path in enumerate(corpus[5:15]):
        path.write_text(f"The dog keeps {number} sheep together on the hill.")
    corpus[3].unlink()
    shutil.copytree(folder / "unsynced", index)
    whole = program.answer(["sync", "out/result"])
    assert whole.status == 0, program.errors
    after = content(index)
    for _ in range(MOMENTS):
        clear(folder / "out")
        shutil.copytree(folder / "unsynced", index)
        at = program.random.randint(whole.events // 2, whole.events)
        killed = program.answer(["sync", "out/result"], event=at)
        assert killed.status in (-9, 0), (at, program.errors)
        assert program.answer(["sync", "out/result"]).status == 0, program.errors
        assert content(index) == after, at
        assert [path.name for path in (folder / "out").iterdir()] == ["result"], at
    clear(folder / "out")


def clear(out: Path) -> None:
    subprocess.run(["rm", "-rf", str(out)], check=True)


def content(folder: Path) -> dict[str, Any]:
    """What a folder holds, but for how long it took to make; it must be whole."""
    written = json.loads((folder / MANIFEST).read_text())
    manifest = read_manifest(folder, kind=FolderKind(written["kind"], written["format_version"]))
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
    assert [path.relative_to(folder).as_posix() for path in files] == sorted(manifest.files)
    written_files = (path for path in files if path.name != MANIFEST)  # those of runs in a sweep count times too
    return {path.relative_to(folder).as_posix(): timeless(path) for path in written_files}


def timeless(file: Path) -> Any:
    """What a file holds, but for how long it took, and how much of it was there already."""
    if file.suffix == ".table":
        return re.sub(r'"time": [0-9-]+', "", file.read_text())
    if file.suffix == ".json":
        return without_times(json.loads(file.read_text()))
    if file.suffix == ".csv":
        with file.open() as stream:
            return [without_times(row) for row in csv.DictReader(stream)]
    return file.read_bytes()


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: without_times(inner)
            for name, inner in value.items()
            if "seconds" not in name and name not in ("scored", "requests", "retrievals")
        }
    return [without_times(inner) for inner in value] if isinstance(value, list) else value

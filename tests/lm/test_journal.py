"""The journal: what was scored is not scored again, whatever happened to the file's end."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from ralm.errors import StorageError
from ralm.lm.journal import Journal, request_key
from ralm.lm.local import engine
from ralm.lm.local.model import LocalLanguageModel, load_language_model
from ralm.lm.scoring import Scorer
from ralm.records import FloatArray, Request


@pytest.fixture(scope="module")
def model(tiny_folders: dict[str, Path]) -> LocalLanguageModel:
    return load_language_model(str(tiny_folders["gpt2"]))


def requests() -> list[Request]:
    text = np.arange(60, dtype=np.int64) % 11
    documents = [text[:0], text[3:9], text[20:25]]
    return [
        Request(document=documents[begin % 3], context=text[:begin], targets=text[begin : begin + 4])
        for begin in range(4, 56, 4)
    ]


class KilledError(Exception):
    pass


def test_a_killed_run_goes_on_where_it_was(
    tmp_path: Path, model: LocalLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Scorer(model).log_probs(requests())
    passes = 0
    forward = model.logits.model.forward

    def dies(*inputs: object, **options: object) -> object:
        nonlocal passes
        passes += 1
        if passes == 2:
            raise KilledError
        return forward(*inputs, **options)

    monkeypatch.setattr(model.logits.model, "forward", dies)
    with Journal(tmp_path / "journal") as journal, pytest.raises(KilledError):
        Scorer(model, journal).log_probs(requests())
    assert passes == 2
    with Journal(tmp_path / "journal") as journal:
        again = Scorer(model, journal).log_probs(requests())
        assert 0 < journal.reused < len(requests())
        assert passes == 4, "one of the three passes was done before; the second is done now, and the third"
    with Journal(tmp_path / "journal") as journal:
        once_more = Scorer(model, journal).log_probs(requests())
        assert journal.reused == len(requests())
        assert passes == 4
    for expected, *others in zip(whole, again, once_more, strict=True):
        for other in others:
            np.testing.assert_array_equal(other, expected)


def scored(numbers: list[float]) -> FloatArray:
    return np.array(numbers, dtype=np.float32)


@pytest.mark.parametrize("cut", range(1, 45, 4))
def test_a_half_written_end_is_cut_off(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal"
    first, second, third = (request_key(request) for request in requests()[:3])
    with Journal(path) as journal:
        journal.add([(first, scored([-1.5, -2.0]))])
        kept = path.stat().st_size
        journal.add([(second, scored([-3.0, -0.25, -4.0, -5.0]))])
    content = path.read_bytes()
    path.write_bytes(content[: max(kept, len(content) - cut)])
    with Journal(path) as journal:
        np.testing.assert_array_equal(journal.get(first), scored([-1.5, -2.0]))
        assert journal.get(second) is None
        journal.add([(third, scored([-6.0]))])
    with Journal(path) as journal:
        np.testing.assert_array_equal(journal.get(third), scored([-6.0]))
        assert journal.reused == 1


def test_an_altered_record_ends_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    key = request_key(requests()[0])
    with Journal(path) as journal:
        journal.add([(key, scored([-1.5]))])
    content = bytearray(path.read_bytes())
    content[-6] ^= 1
    path.write_bytes(content)
    with Journal(path) as journal:
        assert journal.get(key) is None


def test_requests_are_known_by_tokens_and_targets() -> None:
    text = np.arange(9, dtype=np.int64)
    keys = {
        request_key(Request(document=text[:d], context=text[d:c], targets=text[c:])) for d in range(3) for c in (4, 5)
    }
    assert len(keys) == 2, "where the document ends makes no difference, where the targets begin does"


def test_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuses)
    with pytest.raises(StorageError, match="cannot be written"):
        Journal(tmp_path / "journal")


def test_two_copies_share_the_work(tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from ralm.lm.named import ModelOptions

    one = load_language_model(str(tiny_folders["gpt2"]), ModelOptions(device="cpu"))
    two = load_language_model(str(tiny_folders["gpt2"]), ModelOptions(device="cpu,cpu"))
    monkeypatch.setattr(engine, "TOKENS_A_BATCH", {"cpu": 1})
    for expected, found in zip(Scorer(one).log_probs(requests()), Scorer(two).log_probs(requests()), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_record_that_says_it_is_longer_than_the_file(tmp_path: Path) -> None:
    """It is neither believed nor made room for."""
    path, key = tmp_path / "journal", request_key(requests()[0])
    with Journal(path) as journal:
        journal.add([(key, scored([-1.5]))])
    content = path.read_bytes()
    path.write_bytes(content + b"k" * 16 + b"\xff\xff\xff\xff" + b"some bytes")
    tracemalloc.start()
    with Journal(path) as journal:
        assert journal.get(key) is not None
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert path.read_bytes() == content

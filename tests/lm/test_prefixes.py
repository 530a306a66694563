"""Beginnings of prompts that are kept: the same figures, nothing read twice, and no more memory than allowed."""

import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from pydantic import JsonValue

from ralm.answering.answerer import Answerer
from ralm.answering.options import AnswerOptions
from ralm.answering.prompt_reader import open_prompt
from ralm.errors import InputError
from ralm.lm.local.continuation import CachedDecoder
from ralm.lm.local.engine import TargetLogits
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.local.prefixes import PrefixCache, PrefixFile
from ralm.lm.registry import ModelOptions, load_local_model
from ralm.reading.sources import FromRetriever
from ralm.records import FloatArray, Hits, IntArray, Passage, ScoringSequence
from ralm.storage.store import Store
from tests.cli.program import done, failed, printed, ralm, write_rows
from tests.lm.test_continuation import Reads, check
from tests.tiny_models import POSITIONS, longrope_model

_LARGE = 1 << 30
PROMPT = open_prompt("replug")


@pytest.fixture
def reads(model: LocalLanguageModel) -> Iterator[Reads]:
    counted = Reads(model)
    yield counted
    counted.hook.remove()


def decoder(model: LocalLanguageModel, prefixes: PrefixCache | None) -> CachedDecoder:
    """That of a new request."""
    return CachedDecoder(model.logits, POSITIONS, prefixes=prefixes)


def after(model: LocalLanguageModel, prefixes: PrefixCache | None, *texts: IntArray) -> FloatArray:
    return decoder(model, prefixes).next_tokens(texts).log_probs_BC


def some(draw: np.random.Generator, *sizes: int) -> list[IntArray]:
    return [draw.integers(0, 250, size=size) for size in sizes]


def cache(*passages: IntArray, capacity: int = _LARGE) -> PrefixCache:
    """An empty one, with these beginnings marked."""
    prefixes = PrefixCache(capacity)
    for passage in passages:
        prefixes.mark(passage)
    return prefixes


def joined(*parts: IntArray) -> IntArray:
    return np.concatenate(parts)


def held(model: LocalLanguageModel, passage: IntArray) -> int:
    """The bytes of a passage."""
    prefixes = cache(passage)
    after(model, prefixes, joined(passage, passage[:2]))
    return prefixes.held


def test_a_passage_is_read_once_for_all_requests(model: LocalLanguageModel, reads: Reads) -> None:
    passage, one, other = some(np.random.default_rng(0), 20, 6, 3)
    prefixes = cache(passage)
    after(model, prefixes, joined(passage, one))
    assert reads.taken() == [(1, 20), (1, 5), (1, 1)], "the passage, the rest, and the last token"
    check(model.model, decoder(model, prefixes), [joined(passage, other)])
    assert reads.taken() == [(1, 23), (1, 2), (1, 1)], "whole, to compare; and what follows the passage"
    assert (prefixes.found, prefixes.read) == (20, 20)
    before = prefixes.held
    after(model, prefixes, joined(passage, one[:1]))
    assert reads.taken() == [(1, 1)]
    assert prefixes.held == before > 0, "what is kept already is not kept twice"
    after(model, prefixes, one)
    assert reads.taken() == [(1, 5), (1, 1)], "a text without a marked beginning is read as without the cache"


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30), fit=st.floats(0, 4), alone=st.booleans())
def test_found_or_read_to_the_last_bit(model: LocalLanguageModel, seed: int, fit: float, alone: bool) -> None:
    """Texts with beginnings in common, one after another and together, in a cache of any size."""
    draw = np.random.default_rng(seed)
    passages = some(draw, 5, 17, 24, 30)
    passages.append(joined(passages[0], passages[2]))
    capacity = int(fit * held(model, passages[3]))
    prefixes = cache(*passages, capacity=capacity)
    for _ in range(6):
        ends = some(draw, *draw.integers(1, 12, size=1 if alone else 3).tolist())
        texts = [joined(passages[draw.integers(0, 5)], end) for end in ends]
        found = after(model, prefixes, *texts)
        np.testing.assert_array_equal(found, after(model, cache(*passages), *texts))
        np.testing.assert_allclose(found, after(model, None, *texts), rtol=1e-4, atol=1e-5)
        assert prefixes.held <= capacity


def test_the_same_tokens_in_another_place_are_another_beginning(model: LocalLanguageModel) -> None:
    one, other, end = some(np.random.default_rng(0), 8, 8, 3)
    changed = joined(one, other, end)
    changed[0] += 1
    texts = [joined(one, other, end), joined(other, one, end), changed]
    prefixes = cache(*(text[:16] for text in texts))
    for text in texts:
        check(model.model, decoder(model, prefixes), [text])
    assert prefixes.found == 0


def test_the_least_recently_used_go_first(model: LocalLanguageModel) -> None:
    passages = some(np.random.default_rng(0), *[16] * 5)
    size = held(model, passages[0])
    prefixes = cache(*passages, capacity=2 * size)
    ask = [joined(passage, passage[:2]) for passage in passages]
    after(model, prefixes, ask[0])
    after(model, prefixes, ask[1])
    for place in range(2, 5):
        before = prefixes.found
        after(model, prefixes, ask[0])
        assert prefixes.found == before + 16
        after(model, prefixes, ask[place])
    before = prefixes.found
    after(model, prefixes, ask[1])
    assert prefixes.found == before
    assert prefixes.held == 2 * size


def test_scores_behind_a_kept_passage(model: LocalLanguageModel) -> None:
    passage, one, other = some(np.random.default_rng(0), 20, 9, 12)
    prefixes = cache(passage)
    for end in (one, other):
        text = joined(passage, end)
        sequence = ScoringSequence(text, np.arange(22, len(text)))
        [scored] = decoder(model, prefixes).score([sequence])
        [whole] = model.score([sequence])
        np.testing.assert_allclose(scored, whole, rtol=1e-4, atol=1e-5)
    assert prefixes.found == 20


def test_many_requests_at_once_in_too_small_a_cache(model: LocalLanguageModel) -> None:
    draw = np.random.default_rng(0)
    passages = some(draw, *[40] * 8)
    texts = [joined(passages[number % 8], *some(draw, 5)) for number in range(32)]
    expected = [after(model, cache(*passages), text) for text in texts]
    capacity = 2 * held(model, passages[0])
    prefixes = cache(*passages, capacity=capacity)
    with ThreadPoolExecutor(max_workers=32) as pool:
        found = [*pool.map(lambda text: after(model, prefixes, text), texts)]
    np.testing.assert_array_equal(found, expected)
    assert 0 < prefixes.held <= capacity


def test_not_if_the_length_decides_how_a_text_is_read() -> None:
    logits = TargetLogits(longrope_model(), "longrope")
    prefixes = cache(np.arange(20))
    CachedDecoder(logits, POSITIONS, prefixes=prefixes).next_tokens([np.arange(30)])
    assert prefixes.held == 0


def test_the_oldest_marks_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ralm.lm.local.prefixes._MARKS", 2)
    one, two, three = (np.full(size, size) for size in (1, 2, 3))
    prefixes = cache(one, two, one, three)
    assert [len(prefixes.marked(text)) for text in (one, two, three)] == [1, 0, 3]


def test_questions_about_one_passage_read_it_once() -> None:
    """In prompts of questions the beginning ends with the passage; what is answered and scored stays the same."""
    kept = load_local_model("ralm-tiny", ModelOptions(passage_cache=100))
    plain = load_local_model("ralm-tiny")
    passage = Passage(0, "0", "Files", "The function open() opens a file and returns a file object.")
    source = FromRetriever(AlwaysFirst(), [passage])
    questions = ["What does open() return?", "Which function opens a file?", "Who opens it?"]
    answers = [
        answer
        for model in (plain, kept)
        for one in questions  # each is a request of its own
        for answer in Answerer(model, PROMPT, source, options=AnswerOptions(new_tokens=6)).answers([one])
    ]
    assert [one.answer.text for one in answers[:3]] == [one.answer.text for one in answers[3:]]
    for one, other in zip(answers[:3], answers[3:], strict=True):
        np.testing.assert_allclose(one.text.log_probs_T, other.text.log_probs_T, atol=1e-4)
    assert kept.prefixes is not None
    assert kept.prefixes.found == 2 * kept.prefixes.read > 0


def test_a_file_serves_later_processes(model: LocalLanguageModel, reads: Reads, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    passage, *ends = some(draw, 40, 5, 7)
    texts = [joined(passage, end) for end in ends]
    expected = [after(model, cache(passage), text) for text in texts]
    for capacity in (_LARGE, 0):  # in memory too, or in the file alone
        for later in (False, True):
            prefixes = PrefixCache(capacity, PrefixFile(tmp_path / f"{capacity}.sqlite", lambda: model.config))
            prefixes.mark(passage)
            reads.taken()
            np.testing.assert_array_equal([after(model, prefixes, text) for text in texts], expected)
            assert (prefixes.read, prefixes.found) == ((0, 80) if later else (40, 40))
            assert ((1, 40) in reads.taken()) != later


def test_what_decides_the_last_bits_is_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [(torch.zeros(2, 3, 4, dtype=torch.bfloat16), torch.ones(2, 3, 4, dtype=torch.bfloat16))]
    file = tmp_path / "kept.sqlite"
    PrefixFile(file, lambda: {"weights": "a"}).put(b"tokens", layers)
    found = PrefixFile(file, lambda: {"weights": "a"}).get(b"tokens")
    assert found is not None
    torch.testing.assert_close([*found], layers, rtol=0, atol=0)
    assert PrefixFile(file, lambda: {"weights": "b"}).get(b"tokens") is None
    assert PrefixFile(file, lambda: {"weights": "a"}).get(b"others") is None
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 77)
        assert PrefixFile(file, lambda: {"weights": "a"}).get(b"tokens") is None
    with sqlite3.connect(file) as database:
        changed = "CAST(substr(value, 1, 90) || x'00' || substr(value, 92) AS BLOB)"
        database.execute(f"UPDATE entries SET value = {changed}")
    assert PrefixFile(file, lambda: {"weights": "a"}).get(b"tokens") is None
    (tmp_path / "text.txt").write_text("no database")
    with pytest.raises(InputError, match=r"text\.txt is not a passage cache"):
        PrefixFile(tmp_path / "text.txt", dict)
    monkeypatch.setattr("ralm.lm.local.prefixes._LARGEST", 10)
    other = PrefixFile(tmp_path / "other.sqlite", dict)
    other.put(b"tokens", layers)
    assert other.get(b"tokens") is None


def test_later_processes_answer_the_same_without_reading_passages(tmp_path: Path) -> None:
    rows = [{"id": str(number), "text": f"The function f{number}() opens file {number}."} for number in range(3)]
    done("index", write_rows(tmp_path / "corpus.jsonl", rows), "--out", tmp_path / "index")
    asked = ("ask", "What opens file 2?", "--lm", "ralm-tiny", "--index", tmp_path / "index", "--new-tokens", "4")
    first, second = (printed(*asked, "--lm-args", f"passage_cache_file={tmp_path / 'kept.sqlite'}") for _ in range(2))
    assert first == second
    assert Store(tmp_path / "kept.sqlite").count() > 0
    failed(
        ralm(*asked, "--lm-args", f"passage_cache_file={tmp_path / 'corpus.jsonl'}"),
        1,
        "corpus.jsonl is not a passage cache",
    )


@dataclass
class AlwaysFirst:
    """A retriever that finds one passage."""

    config: dict[str, JsonValue] = field(default_factory=dict)

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        return Hits(np.zeros((len(queries), 1), np.int64), np.ones((len(queries), 1), np.float32))

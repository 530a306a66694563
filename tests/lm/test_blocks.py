"""Blocks of texts that are kept: the same figures, little read twice, and no more memory than allowed."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from ralm.errors import InputError, UsageError
from ralm.lm.local.blocks import BLOCK, BlockFile, Blocks, block_keys
from ralm.lm.local.decoder import CachedDecoder
from ralm.lm.local.model import LocalLanguageModel, choose_decoder, load_transformers_model
from ralm.lm.registry import ModelOptions, load_local_model
from ralm.records import FloatArray, IntArray, ScoringSequence
from tests.campaign import examples
from tests.lm.test_decoder import Reads, check
from tests.tiny_models import POSITIONS

LARGE = 1 << 30


@pytest.fixture(scope="module")
def model(tiny_folders: dict[str, Path]) -> LocalLanguageModel:
    """Blocks of a cache are copied alike for all families."""
    return load_transformers_model(str(tiny_folders["llama"]))


@pytest.fixture
def reads(model: LocalLanguageModel) -> Iterator[Reads]:
    counted = Reads(model)
    yield counted
    counted.hook.remove()


def decoder(model: LocalLanguageModel, blocks: Blocks) -> CachedDecoder:
    """That of a new request."""
    return CachedDecoder(model.logits, POSITIONS, blocks)


def after(model: LocalLanguageModel, blocks: Blocks, *texts: IntArray) -> FloatArray:
    return decoder(model, blocks).next_tokens(texts).log_probs_BC


def random_texts(draw: np.random.Generator, *sizes: int) -> list[IntArray]:
    return [draw.integers(0, 250, size=size) for size in sizes]


def joined(*parts: IntArray) -> IntArray:
    return np.concatenate(parts)


def bytes_of_blocks(model: LocalLanguageModel, count: int) -> int:
    blocks = Blocks(LARGE)
    after(model, blocks, np.arange(BLOCK + 1))
    assert blocks.kept_bytes == BLOCK * blocks.token_bytes > 0
    return count * blocks.kept_bytes


def test_a_passage_is_read_once_for_all_requests(model: LocalLanguageModel, reads: Reads) -> None:
    """Up to the last whole block, whatever follows it and however the texts came."""
    passage, question, other = random_texts(np.random.default_rng(0), 2 * BLOCK + 5, 6, 3)
    blocks = Blocks(LARGE)
    after(model, blocks, joined(passage, question))
    assert reads.taken() == [(1, 2 * BLOCK + 10), (1, 1)], "all but the last token, and the last token"
    check(model.model, decoder(model, blocks), [joined(passage, other)])
    assert reads.taken() == [(1, 2 * BLOCK + 8), (1, 7), (1, 1)], "whole, to compare; and what follows the blocks"
    assert (blocks.reused, blocks.read) == (2 * BLOCK, 2 * BLOCK + 10 + 7)
    before = blocks.kept_bytes
    after(model, blocks, joined(passage, question))
    assert reads.taken() == [(1, 10), (1, 1)]
    assert blocks.kept_bytes == before > 0, "what is kept already is not kept twice"


@pytest.mark.parametrize("chunk", [7, BLOCK, 20, 40])
def test_a_text_that_comes_in_pieces_is_found_whole(model: LocalLanguageModel, reads: Reads, chunk: int) -> None:
    [text] = random_texts(np.random.default_rng(0), 50)
    blocks = Blocks(LARGE)
    in_pieces = decoder(model, blocks)
    for end in [*range(chunk, len(text), chunk), len(text)]:
        in_pieces.next_tokens([text[:end]])
    assert sum(rows * tokens for rows, tokens in reads.taken()) == len(text)
    check(model.model, decoder(model, blocks), [joined(text[:-1], text[:3])])
    assert blocks.reused == 3 * BLOCK


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 1 << 30), fit=st.integers(0, 9), together=st.booleans())
def test_any_texts_in_a_cache_of_any_size(model: LocalLanguageModel, seed: int, fit: int, together: bool) -> None:
    """Texts with beginnings in common, one after another and together."""
    draw = np.random.default_rng(seed)
    passages = random_texts(draw, 5, 17, 33, 40)
    passages.append(joined(passages[0], passages[2]))
    blocks = Blocks(bytes_of_blocks(model, fit))
    for _ in range(5):
        ends = random_texts(draw, *draw.integers(1, 12, size=3 if together else 1).tolist())
        texts = [joined(passages[draw.integers(0, 5)], end) for end in ends]
        check(model.model, decoder(model, blocks), texts)
        assert blocks.kept_bytes <= bytes_of_blocks(model, fit)


def test_the_least_recently_used_go_first(model: LocalLanguageModel) -> None:
    passages = random_texts(np.random.default_rng(0), *[BLOCK] * 5)
    blocks = Blocks(bytes_of_blocks(model, 2))
    texts = [joined(passage, passage[:2]) for passage in passages]
    after(model, blocks, texts[0])
    after(model, blocks, texts[1])
    for place in range(2, 5):
        before = blocks.reused
        after(model, blocks, texts[0])
        assert blocks.reused == before + BLOCK
        after(model, blocks, texts[place])
    before = blocks.reused
    after(model, blocks, texts[1])
    assert blocks.reused == before
    assert blocks.kept_bytes == bytes_of_blocks(model, 2)


def test_a_text_that_is_larger_than_the_cache_leaves_the_others(model: LocalLanguageModel) -> None:
    small, large = random_texts(np.random.default_rng(0), 2 * BLOCK + 2, 3 * BLOCK + 2)
    blocks = Blocks(bytes_of_blocks(model, 2))
    after(model, blocks, small)
    for _ in range(2):
        check(model.model, decoder(model, blocks), [large, joined(small, large[:3])])
    assert blocks.reused == 4 * BLOCK
    assert blocks.kept_bytes == bytes_of_blocks(model, 2)


def test_scores_behind_a_kept_passage(model: LocalLanguageModel) -> None:
    passage, *ends = random_texts(np.random.default_rng(0), 20, 9, 12)
    blocks = Blocks(LARGE)
    for end in ends:
        text = joined(passage, end)
        sequence = ScoringSequence(text, np.arange(22, len(text)))
        [scored] = decoder(model, blocks).score([sequence])
        [whole] = model.score([sequence])
        np.testing.assert_allclose(scored, whole, rtol=1e-4, atol=1e-5)
    assert blocks.reused == BLOCK


def test_many_requests_at_once_in_too_small_a_cache(model: LocalLanguageModel) -> None:
    draw = np.random.default_rng(0)
    passages = random_texts(draw, *[40] * 8)
    texts = [joined(passages[number % 8], *random_texts(draw, 5)) for number in range(32)]
    expected = [after(model, Blocks(0), text) for text in texts]
    blocks = Blocks(bytes_of_blocks(model, 5))
    with ThreadPoolExecutor(max_workers=32) as pool:
        computed = [*pool.map(lambda text: after(model, blocks, text), texts)]
    np.testing.assert_allclose(computed, expected, rtol=1e-4, atol=1e-5)
    assert 0 < blocks.kept_bytes <= bytes_of_blocks(model, 5)


def test_a_file_serves_later_processes(model: LocalLanguageModel, reads: Reads, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    passage, *ends = random_texts(draw, 40, 5, 7)
    texts = [joined(passage, end) for end in ends]
    expected = [after(model, Blocks(0), text) for text in texts]
    for capacity in (LARGE, bytes_of_blocks(model, 1), bytes_of_blocks(model, 2)):
        for later in (False, True):
            blocks = Blocks(capacity, BlockFile(tmp_path / f"{capacity}.sqlite", lambda: model.config))
            assert choose_decoder(model.logits, POSITIONS, blocks) is CachedDecoder
            if later and capacity == LARGE:
                with ThreadPoolExecutor(1) as pool:
                    assert pool.submit(decoder(model, blocks).known, texts[0]).result() == 2 * BLOCK
            reads.taken()
            computed = [after(model, blocks, text) for text in texts]
            np.testing.assert_allclose(computed, expected, rtol=1e-4, atol=1e-5)
            fits = capacity != bytes_of_blocks(model, 1)
            assert blocks.reused == fits * 2 * BLOCK * (1 + later), "two blocks of 44 and of 46 tokens"
            assert blocks.kept_bytes <= capacity


def test_a_model_keeps_its_blocks_in_the_file_of_its_options(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    for later in (False, True):
        options = ModelOptions(passage_cache_file=tmp_path / "kept.sqlite")
        model = load_local_model(str(tiny_folders["llama"]), options)
        model.continuations().next_tokens([np.arange(2 * BLOCK)])
        assert model.blocks.reused == later * BLOCK


def test_what_decides_keys_and_values_is_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.zeros(1, 3, 4, 2, dtype=torch.bfloat16), None, torch.ones(1, 3, 4, 2, dtype=torch.bfloat16)]
    file = tmp_path / "kept.sqlite"
    BlockFile(file, lambda: {"weights": "a"}).put(b"tokens", tensors)
    kept = BlockFile(file, lambda: {"weights": "a"}).get(b"tokens")
    assert kept is not None
    torch.testing.assert_close([*kept], tensors, rtol=0, atol=0)
    assert BlockFile(file, lambda: {"weights": "b"}).get(b"tokens") is None
    assert BlockFile(file, lambda: {"weights": "a"}).get(b"others") is None
    for changed in ("torch.get_num_threads", "ralm.lm.local.blocks.BLOCK"):
        with monkeypatch.context() as patch:
            patch.setattr(changed, (lambda: 77) if changed.startswith("torch") else 32)
            assert BlockFile(file, lambda: {"weights": "a"}).get(b"tokens") is None
    with sqlite3.connect(file) as database:
        changed = "CAST(substr(value, 1, 90) || x'00' || substr(value, 92) AS BLOB)"
        database.execute(f"UPDATE entries SET value = {changed}")
    assert BlockFile(file, lambda: {"weights": "a"}).get(b"tokens") is None
    (tmp_path / "text.txt").write_text("no database")
    with pytest.raises(InputError, match=r"text\.txt is not a passage cache"):
        BlockFile(tmp_path / "text.txt", dict)
    with pytest.raises(UsageError, match="leave out `passage_cache` 0"):
        ModelOptions(passage_cache=0, passage_cache_file=file)


def test_keys_are_of_all_tokens_before() -> None:
    text = np.arange(5 * BLOCK)
    keys = block_keys(text)
    assert len({*keys}) == 5
    assert block_keys(text[: 3 * BLOCK + 5]) == keys[:3]
    assert not {*keys} & {*block_keys(text[BLOCK:])}, "the same tokens in another place are another block"


def test_no_key_names_a_block_that_was_not_copied(model: LocalLanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an interrupt, and where memory does not hold more blocks."""
    texts = random_texts(np.random.default_rng(0), *[40] * 3)
    blocks = Blocks(LARGE)
    after(model, blocks, texts[0])
    for error, raised in (
        (KeyboardInterrupt, pytest.raises(KeyboardInterrupt)),
        (torch.OutOfMemoryError, nullcontext()),
    ):
        with monkeypatch.context() as patch, raised:
            patch.setattr("ralm.lm.local.blocks.copy_columns", Mock(side_effect=error))
            after(model, blocks, texts[1])
    before = blocks.kept_bytes
    for text in texts:
        check(model.model, decoder(model, blocks), [text])
    assert blocks.kept_bytes > before, "room that there was is used"

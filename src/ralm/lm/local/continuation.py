"""Predicts the next token of texts that grow, with or without a cache of keys and values.

`CachedDecoder` reads nothing twice. Each call gives the texts as they are now; cached prefixes are found by comparing
tokens. A text that grew by one token keeps its row of keys and values. A text that changed is read again from where it
differs. A new text that begins like another one, such as a prompt with the same demonstrations, takes that beginning
from it. Then the last tokens of all texts are read together, as one column of one batch. Tokens that are to be scored
after texts are read in the same way, as several columns.

`UncachedDecoder` reads each text whole every time. It serves models whose state is not rows of keys and values, and
which `states.StateDecoder` cannot continue either.

Shapes: B texts, N tokens, P targets, C columns of the cache, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch
from transformers.cache_utils import DynamicCache

from ralm.errors import ModelError
from ralm.lm.local.engine import TargetLogits, length_thresholds, pad_right, target_log_probs, to_device
from ralm.lm.local.keyvalues import KeptPrefix, KeyValueRows
from ralm.lm.local.prefixes import PrefixCache
from ralm.lm.scoring import common_prefix_length
from ralm.records import FloatArray, IntArray, NextTokens, ScoringSequence

_MIN_KEPT_SHARE: Final = 1 / 8
"""The share of a text's tokens from which a prefix is kept; a shorter one is not worth a pass of its own."""
_MIN_COPIED_SHARE: Final = 1 / 2
"""The share of a new text's tokens from which they are copied from another text of the call. The rest is read by
itself, which takes more time per token than in a batch."""
_NO_TARGETS: Final = torch.zeros(0, dtype=torch.long)


class LocalDecoder(ABC):
    """Predicts the next tokens of texts of at most `max_length` tokens, in batches of `tokens_per_batch` tokens."""

    def __init__(self, logits: TargetLogits, max_length: int, tokens_per_batch: int | None = None) -> None:
        self._logits = logits
        self._max_length = max_length
        self._tokens = tokens_per_batch or logits.tokens_per_batch
        self._thresholds = length_thresholds(logits.model.config)

    @torch.inference_mode()
    def next_tokens(self, texts: Sequence[IntArray], wanted: IntArray | None = None) -> NextTokens:
        """As `Continuations.next_tokens`; ModelError if a text or token cannot be read, or the result is NaN."""
        _check_texts(self._logits.name, texts, self._max_length)
        with _reported_out_of_memory(self._logits, texts):
            log_probs_BV = self._read(texts)
        return _wanted_tokens(self._logits, log_probs_BV, wanted)

    @abstractmethod
    def _read(self, texts: Sequence[IntArray]) -> FloatArray:
        """The distributions (float32, B x V) after the texts."""

    def _distributions(self, logits_BV: torch.Tensor) -> FloatArray:
        """The log-softmax (float32) in main memory; ModelError if it is NaN."""
        log_probs_BV = logits_BV.float().log_softmax(-1)
        self._logits.check_numbers(log_probs_BV)
        found_BV: FloatArray = log_probs_BV.cpu().numpy()
        return found_BV


class CachedDecoder(LocalDecoder):
    """Texts of at most `max_length` tokens, with a row of keys and values each; several that must be read again are
    read in batches of `tokens_per_batch` tokens, padding included, or one by one if their `prefixes` are kept."""

    keeps_texts: Final = True

    def __init__(
        self,
        logits: TargetLogits,
        max_length: int,
        tokens_per_batch: int | None = None,
        prefixes: PrefixCache | None = None,
    ) -> None:
        super().__init__(logits, max_length, tokens_per_batch)
        self._held: list[IntArray] = []
        self._rows = KeyValueRows()
        self._prefixes = None if self._thresholds else prefixes

    def _read(self, texts: Sequence[IntArray]) -> FloatArray:
        numbers_B = self._hold(texts)
        log_probs_BV = self._read_last([texts[number] for number in numbers_B])
        self._held = [texts[number] for number in numbers_B]
        found_BV = np.empty_like(log_probs_BV)
        found_BV[numbers_B] = log_probs_BV
        return found_BV

    @torch.inference_mode()
    def score(self, sequences: Sequence[ScoringSequence]) -> list[FloatArray]:
        """As the model's `score`, but what sequences share with each other and with the texts of the previous call is
        not read again; the tokens before their first targets are kept for the next call."""
        texts = [one.tokens_N[: one.targets_P[0]] for one in sequences]
        with _reported_out_of_memory(self._logits, [one.tokens_N for one in sequences]):
            room = max(len(one) - len(text) + 1 for one, text in zip(sequences, texts, strict=True))
            numbers_B = self._hold(texts, room)
            found = dict(zip(numbers_B, self._read_rests([sequences[number] for number in numbers_B]), strict=True))
        self._held = [texts[number][:-1] for number in numbers_B]
        return [found[number] for number in range(len(sequences))]

    def _hold(self, texts: Sequence[IntArray], room: int = 1) -> list[int]:
        """Give each text a row in which all but its last token is read, with `room` more columns; returns each row's
        text."""
        assigned = _assign_rows(self._held, texts, self._thresholds)
        rows = [texts[number] for number, _ in assigned]
        kept_B = [kept for _, kept in assigned]
        self._held = []  # until everything is read: an error must not leave wrong rows
        self._rows.arrange(kept_B, np.array([len(row) - 1 for row in rows], dtype=np.int64), room)
        self._read_changed(rows, [kept.columns for kept in kept_B])
        return [number for number, _ in assigned]

    def _read_changed(self, rows: Sequence[IntArray], columns_B: Sequence[int]) -> None:
        """Read the part of each text that is not cached, except its last token."""
        new = [row for row, columns in enumerate(columns_B) if columns == 0]
        copied = {} if self._thresholds else _copied_prefixes(new, rows)
        unread = {row for row, columns in enumerate(columns_B) if columns < len(rows[row]) - 1 and row not in copied}
        if self._prefixes is not None:
            self._read_new(sorted(unread.intersection(new)), rows, self._prefixes)
            unread.difference_update(new)
        together = [] if self._thresholds else [row for row in new if row in unread]
        for batch in batches(together, rows, self._tokens):
            if len(batch) > 1:
                cache = DynamicCache()
                self._logits(pad_right([rows[row][:-1] for row in batch]), _NO_TARGETS, _NO_TARGETS, cache)
                for place, row in enumerate(batch):
                    columns = slice(0, len(rows[row]) - 1)
                    layers = [
                        (layer.keys[place, :, columns], layer.values[place, :, columns]) for layer in cache.layers
                    ]
                    self._rows.put_block(row, layers)
                unread.difference_update(batch)
        for row in sorted(unread):
            self._read_rest(row, rows[row], columns_B[row])
        for row, kept in copied.items():
            self._rows.copy(kept, row)
            if kept.columns < len(rows[row]) - 1:
                self._read_rest(row, rows[row], kept.columns)

    def _read_new(self, new: Sequence[int], rows: Sequence[IntArray], prefixes: PrefixCache) -> None:
        """Read new texts except their last tokens: the longest marked beginning of each, unless it is kept, and the
        rests; together if all rows are new and have similar rests."""
        read_B = []
        for row in new:
            first = prefixes.marked(rows[row][:-1])
            read_B.append(len(first))
            if len(first) == 0:
                continue
            kept = prefixes.find(first)
            if kept is None:
                self._read_columns(row, 0, first)
                prefixes.add(first, self._rows.block(row, len(first)))
            else:
                self._rows.put_block(row, kept)
        rests_B = [len(rows[row]) - 1 - read for row, read in zip(new, read_B, strict=True)]
        longest = max(rests_B, default=0)
        if 1 < len(new) == len(rows) and 0 < longest < min(map(len, rows)) and longest * len(new) <= 2 * sum(rests_B):
            self._read_ends(rows, longest)
            return
        for row, read, rest in zip(new, read_B, rests_B, strict=True):
            if rest:
                self._read_columns(row, read, rows[row][read:-1])

    def _read_ends(self, rows: Sequence[IntArray], count: int) -> None:
        """Read the last `count` tokens before the last one of all rows, which have all that is before."""
        padding = self._extend_rows(slice(0, len(rows)), -count, count, 0)
        input_BN = torch.from_numpy(np.stack([tokens[-1 - count : -1] for tokens in rows]))
        self._logits(input_BN, _NO_TARGETS, _NO_TARGETS, self._rows.cache, **padding)

    def _read_columns(self, row: int, columns: int, tokens: IntArray) -> None:
        """Read the tokens of a row after its first columns."""
        begin = self._rows.begins(row)
        self._rows.extend_from(slice(row, row + 1), begin, begin + columns)
        self._logits(torch.from_numpy(tokens)[None], _NO_TARGETS, _NO_TARGETS, self._rows.cache)

    def _read_rest(self, row: int, tokens: IntArray, columns: int) -> None:
        """Read one text from `columns` on, except its last token."""
        # if the length decides how a text is read, the last token is read too; reading it again overwrites it
        self._read_columns(row, columns, tokens[columns:] if self._thresholds else tokens[columns:-1])

    def _read_last(self, rows: Sequence[IntArray]) -> FloatArray:
        """Read the last token of every text; returns the distributions (float32, B x V) after them."""
        last_B1 = torch.from_numpy(np.array([[tokens[-1]] for tokens in rows]))
        step = 1 if self._thresholds else len(rows)
        parts = [self._next(last_B1, slice(first, first + step)) for first in range(0, len(rows), step)]
        self._rows.grew()
        return self._distributions(torch.cat(parts) if len(parts) > 1 else parts[0])

    def _next(self, last_B1: torch.Tensor, batch: slice) -> torch.Tensor:
        """The logits after the last tokens of some rows, padded on the left if their lengths differ."""
        padding = self._extend_rows(batch, 0, 1, 1)
        if len(np.unique(self._rows.lengths_B[batch])) == 1:
            padding = {}
        row_B = torch.arange(len(last_B1[batch]))
        return self._logits(last_B1[batch], row_B, torch.zeros_like(row_B), self._rows.cache, **padding)

    def _read_rests(self, sequences: Sequence[ScoringSequence]) -> list[FloatArray]:
        """Read each sequence after its row, from the last token before its first target on: all together, or one by one
        if padding would make them longer than the model reads."""
        rest = max(len(one) - int(one.targets_P[0]) + 1 for one in sequences)
        together = rest + int(self._rows.lengths_B.max()) <= self._max_length
        step = len(sequences) if together else 1
        batches = [slice(first, first + step) for first in range(0, len(sequences), step)]
        return [log_probs_P for batch in batches for log_probs_P in self._read_targets(sequences[batch], batch)]

    def _read_targets(self, sequences: Sequence[ScoringSequence], batch: slice) -> list[FloatArray]:
        counts = [len(one.targets_P) for one in sequences]
        rests_BN = pad_right([one.tokens_N[one.targets_P[0] - 1 : -1] for one in sequences])
        rest_B1 = torch.tensor([[len(one) - one.targets_P[0] + 1] for one in sequences])
        row_P = torch.from_numpy(np.repeat(np.arange(len(sequences)), counts))
        column_P = torch.from_numpy(np.concatenate([one.targets_P - one.targets_P[0] for one in sequences]))
        target_P = torch.from_numpy(np.concatenate([one.tokens_N[one.targets_P] for one in sequences]))
        found_P = torch.empty(len(row_P))
        step = max(1, self._logits.positions_per_batch // len(rests_BN))
        for first in range(0, rests_BN.shape[1], step):
            input_BN = rests_BN[:, first : first + step]
            here = (column_P >= first) & (column_P < first + input_BN.shape[1])
            padding = self._extend_rows(batch, first, input_BN.shape[1], rest_B1)
            logits_PV = self._logits(input_BN, row_P[here], column_P[here] - first, self._rows.cache, **padding)
            parts = [part.cpu() for part in target_log_probs(logits_PV, target_P[here])]
            found_P[here] = torch.cat([found_P[:0], *parts])  # there may be no parts
        self._logits.check_numbers(found_P)
        return np.split(found_P.numpy(), np.cumsum(counts)[:-1])

    def _extend_rows(
        self, batch: slice, first: int, count: int, rest_B1: torch.Tensor | int
    ) -> dict[str, torch.Tensor]:
        """Let the next pass extend some rows by `count` columns, `first` columns after their ends; returns its padding:
        on the left, and on the right after the `rest_B1` tokens of a row."""
        lengths_B1 = torch.from_numpy(self._rows.lengths_B[batch])[:, None]
        longest, end = int(lengths_B1.max()), self._rows.last
        self._rows.extend_from(batch, end - longest, end + first)
        columns_C = torch.arange(longest + first + count)
        mask_BC = (columns_C >= longest - lengths_B1) & (columns_C < longest + rest_B1)
        positions_BN = lengths_B1 + torch.arange(first, first + count)
        padding = {"attention_mask": to_device(mask_BC.long(), self._logits.device)}
        if self._logits.takes_positions:
            padding["position_ids"] = to_device(positions_BN, self._logits.device)
        return padding


def _check_texts(name: str, texts: Sequence[IntArray], max_length: int) -> None:
    shortest, longest = min(map(len, texts)), max(map(len, texts))
    if shortest == 0:
        raise ModelError(f"{name} cannot continue an empty text: give it a prompt of at least one token.")
    if longest > max_length:
        raise ModelError(f"{name} reads at most {max_length} tokens at once, not {longest}.")


def _wanted_tokens(logits: TargetLogits, log_probs_BV: FloatArray, wanted: IntArray | None) -> NextTokens:
    if wanted is None:
        return NextTokens(log_probs_BV)
    unknown = wanted[(wanted < 0) | (wanted >= log_probs_BV.shape[1])]
    if len(unknown):
        raise ModelError(f"token {unknown[0]} is not one of the {logits.vocabulary} that {logits.name} knows.")
    return NextTokens(log_probs_BV[:, wanted], np.tile(wanted, (len(log_probs_BV), 1)))


@contextmanager
def _reported_out_of_memory(logits: TargetLogits, texts: Sequence[IntArray]) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise ModelError(
            f"{logits.name} runs out of memory on {logits.device} with {len(texts)} texts of up to "
            f"{max(map(len, texts))} tokens: read fewer documents or prompts at once, lower `max_length`, or use "
            '`dtype="bfloat16"`.'
        ) from None


def batches(numbers: Iterable[int], texts: Sequence[IntArray], tokens: int) -> Iterator[list[int]]:
    """The numbers of texts, longest first, in batches of at most `tokens` tokens when padded to the first text."""
    left = sorted(numbers, key=lambda number: -len(texts[number]))
    while left:
        count = max(1, tokens // len(texts[left[0]]))
        yield left[:count]
        left = left[count:]


def _assign_rows(
    held: Sequence[IntArray], texts: Sequence[IntArray], thresholds: Sequence[int]
) -> list[tuple[int, KeptPrefix]]:
    """The number of the text of each row, and what the row keeps; a text that continues a row stays there."""
    kept = _grown(held, texts, thresholds)
    if not thresholds:
        kept |= _changed(held, texts, kept)
    assert len({one.source for one in kept.values()}) == len(kept), "two texts continue one row"
    staying = {one.source: (number, one) for number, one in kept.items() if one.source < len(texts)}
    others = [(number, one) for number, one in kept.items() if one.source >= len(texts)]
    others += [(number, KeptPrefix()) for number in range(len(texts)) if number not in kept]
    free = iter(others)
    return [staying[row] if row in staying else next(free) for row in range(len(texts))]


def _grown(held: Sequence[IntArray], texts: Sequence[IntArray], thresholds: Sequence[int]) -> dict[int, KeptPrefix]:
    """The texts that are a row plus one token, unless the token moves the length across one of the `thresholds`."""
    rows = {tokens.tobytes(): row for row, tokens in enumerate(held)}
    kept = {}
    for number, text in enumerate(texts):
        row = rows.get(text[:-1].tobytes())
        if row is not None and not any(len(held[row]) <= at < len(text) for at in thresholds):
            kept[number] = KeptPrefix(rows.pop(held[row].tobytes()), len(held[row]))
    return kept


def _changed(
    held: Sequence[IntArray], texts: Sequence[IntArray], grown: Mapping[int, KeptPrefix]
) -> dict[int, KeptPrefix]:
    """Those of the remaining texts that share a long enough prefix with a free row."""
    free = set(range(len(held))) - {one.source for one in grown.values()}
    kept = {}
    for number, text in enumerate(texts):
        if number in grown or not free:
            continue
        row = max(free, key=lambda row: common_prefix_length(held[row], text))
        columns = min(common_prefix_length(held[row], text), len(text) - 1)
        if columns >= _MIN_KEPT_SHARE * len(text):
            free.remove(row)
            kept[number] = KeptPrefix(row, columns)
    return kept


def _copied_prefixes(new: Sequence[int], rows: Sequence[IntArray]) -> dict[int, KeptPrefix]:
    """The new rows that begin like another row, which is not copied itself."""
    whole = sorted(set(range(len(rows))) - set(new))
    copied: dict[int, KeptPrefix] = {}
    for row in new:
        length = len(rows[row]) - 1
        shared = [min(common_prefix_length(rows[other], rows[row]), len(rows[other]) - 1, length) for other in whole]
        best = int(np.argmax(shared)) if shared else 0
        if shared and shared[best] >= _MIN_COPIED_SHARE * length > 0:
            copied[row] = KeptPrefix(whole[best], shared[best])
        else:
            whole.append(row)
    return copied


class UncachedDecoder(LocalDecoder):
    """Texts of at most `max_length` tokens, read in batches of `tokens_per_batch` tokens, padding included."""

    def _read(self, texts: Sequence[IntArray]) -> FloatArray:
        found: dict[int, FloatArray] = {}
        for batch in batches(range(len(texts)), texts, 1 if self._thresholds else self._tokens):
            last_B = torch.tensor([len(texts[row]) - 1 for row in batch])
            logits_BV = self._logits(pad_right([texts[row] for row in batch]), torch.arange(len(batch)), last_B)
            found |= zip(batch, self._distributions(logits_BV), strict=True)
        return np.stack([found[row] for row in range(len(texts))])

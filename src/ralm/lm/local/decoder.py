"""Predicts the next token of texts that grow, with or without a cache of keys and values.

Each call of `CachedDecoder` gives the texts as they are now. A text that begins with the text of a row keeps the row of
keys and values; any other takes its longest known beginning from the blocks of all texts before (`blocks`). The missing
ends of texts are read in padded batches, and then the last tokens of all together, as one column of one batch. Tokens
that are to be scored after texts are read in the same way, as several columns.

`StateDecoder` continues from the state that the model itself returns; `UncachedDecoder` reads texts whole each time.

Shapes: B texts, R rows of distinct texts, N tokens, P targets, C columns of the cache, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Final

import numpy as np
import torch

from ralm.errors import DeviceMemoryError, ModelError
from ralm.lm.local.blocks import BLOCK, Blocks, free_bytes
from ralm.lm.local.draw import draw_from_logits
from ralm.lm.local.engine import TargetLogits, length_thresholds, pad_right, target_log_probs, to_device
from ralm.lm.local.rows import CopiedColumns, KeptPrefix, KeyValueRows, copy_columns
from ralm.records import Draw, Drawn, FloatArray, IntArray, NextTokens, ScoringSequence

_TOKENS_PER_BATCH_ON_CPU: Final = 128
"""Tokens of short ends of texts that a CPU reads at once, padding included: reading the weights takes most of the time
of a few tokens, and computing that of more."""
_NO_TARGETS: Final = torch.zeros(0, dtype=torch.long)


class LocalDecoder(ABC):
    """Texts of at most `max_length` tokens whose next tokens are predicted, in batches of `tokens_per_batch` tokens."""

    def __init__(self, logits: TargetLogits, max_length: int, tokens_per_batch: int | None = None) -> None:
        self._logits = logits
        self._max_length = max_length
        self._tokens = tokens_per_batch or logits.tokens_per_batch
        self._thresholds = length_thresholds(logits.model.config)

    @torch.inference_mode()
    def next_tokens(self, texts: Sequence[IntArray]) -> NextTokens:
        """Return log-probabilities as `Continuations`; ModelError if a text cannot be read, or the result is NaN."""
        _check_texts(self._logits.name, texts, self._max_length)
        with self._reported_out_of_memory(texts):
            log_probs_BV = self._read(texts).log_softmax(-1, dtype=torch.float32)
        self._logits.check_numbers(log_probs_BV)
        return NextTokens(log_probs_BV.cpu().numpy())

    @torch.inference_mode()
    def draw(self, texts: Sequence[IntArray], draws: Sequence[Draw]) -> list[Drawn]:
        """Draw as `Continuations`; ModelError if a text cannot be read, or a prediction is NaN."""
        _check_texts(self._logits.name, texts, self._max_length)
        with self._reported_out_of_memory(texts):
            return draw_from_logits(self._logits, self._read(texts), draws)

    @abstractmethod
    def _read(self, texts: Sequence[IntArray]) -> torch.Tensor:
        """Return the logits (B x V) after the texts, on the device."""

    @contextmanager
    def _reported_out_of_memory(self, texts: Sequence[IntArray]) -> Iterator[None]:
        """Turn a lack of memory that no smaller batch avoids into a ModelError with the size that would fit."""
        try:
            yield
        except torch.OutOfMemoryError:
            pass
        else:
            return
        torch.cuda.empty_cache()
        fit = self._tokens_that_fit()
        raise DeviceMemoryError(
            f"{self._logits.name} runs out of memory on {self._logits.device} with {len(texts)} texts of up to "
            f"{max(map(len, texts)):,} tokens{fit}: read fewer documents or prompts at once, lower `max_length`, or "
            'use `dtype="bfloat16"`.'
        )

    def _tokens_that_fit(self) -> str:
        """Return how many tokens would fit, as a clause of a message; nothing if that is not known."""
        return ""


class CachedDecoder(LocalDecoder):
    """Texts with a row of keys and values each; what they begin with comes from the row before or from `blocks`."""

    def __init__(
        self, logits: TargetLogits, max_length: int, blocks: Blocks, tokens_per_batch: int | None = None
    ) -> None:
        super().__init__(logits, max_length, tokens_per_batch)
        if logits.device.type == "cpu":
            self._tokens = max(self._tokens, _TOKENS_PER_BATCH_ON_CPU)
        self._blocks = blocks
        self._rows = KeyValueRows()
        self._texts: list[IntArray] = []
        """The text that each row holds."""
        self._most = 1 << 30
        """The number of sequences that are scored at once."""

    def _read(self, texts: Sequence[IntArray]) -> torch.Tensor:
        distinct = {text.tobytes(): text for text in texts}
        numbers_R = self._hold([text[:-1] for text in distinct.values()])
        grown = [[*distinct.values()][number] for number in numbers_R]
        logits_RV = self._read_last(grown)
        rows = {text.tobytes(): row for row, text in enumerate(grown)}
        return _in_order(logits_RV, [rows[text.tobytes()] for text in texts])

    @torch.inference_mode()
    def known(self, text: IntArray) -> int:
        """Return how many tokens of a text the blocks have."""
        return self._blocks.kept_tokens(text)

    def _tokens_that_fit(self) -> str:
        self._rows, self._texts = KeyValueRows(), []
        size = self._blocks.token_bytes
        return f", and about {free_bytes(self._logits.device) // (2 * size):,} tokens fit" if size else ""

    @torch.inference_mode()
    def score(self, sequences: Sequence[ScoringSequence]) -> list[FloatArray]:
        """Score as the model does, without reading again what the rows or blocks have; it is kept for the next call."""
        scores: list[FloatArray] = []
        with self._reported_out_of_memory([sequence.tokens_N for sequence in sequences]):
            while len(scores) < len(sequences):
                group = sequences[len(scores) : len(scores) + self._most]
                try:
                    scores += self._score_together(group)
                    continue
                except torch.OutOfMemoryError:
                    if len(group) == 1:
                        raise
                self._rows, self._texts, self._most = KeyValueRows(), [], len(group) // 2
                torch.cuda.empty_cache()  # outside the handler, which holds the failed pass's tensors
        return scores

    def _score_together(self, sequences: Sequence[ScoringSequence]) -> list[FloatArray]:
        prompts = [sequence.tokens_N[: sequence.targets_P[0] - 1] for sequence in sequences]
        room = max(len(sequence) - len(prompt) for sequence, prompt in zip(sequences, prompts, strict=True))
        self._hold([*{prompt.tobytes(): prompt for prompt in prompts}.values()], room)
        numbers_R = self._hold(prompts, room)  # copies the rows that several sequences continue
        scores_R = self._read_rests([sequences[number] for number in numbers_R])
        scores = dict(zip(numbers_R, scores_R, strict=True))
        return [scores[number] for number in range(len(sequences))]

    def _hold(self, texts: Sequence[IntArray], room: int = 1) -> list[int]:
        """Give each text a row in which it is read, with `room` more columns; return the number of each row's text."""
        numbers_R, kept_R = _assign_rows(self._texts, texts)
        rows = [texts[number] for number in numbers_R]
        self._texts = []  # until everything is read: an error must not leave wrong rows
        self._rows.arrange(kept_R, np.array([len(text) for text in rows], dtype=np.int64), room)
        missing = {row: text for row, text in enumerate(rows) if kept_R[row].columns < len(text)}
        self._read_missing(missing, {row: kept_R[row].columns for row in missing})
        self._texts = rows
        return numbers_R

    def _read_missing(self, texts: dict[int, IntArray], filled: dict[int, int]) -> None:
        """Read what neither a row nor a block has; of texts that share the next block, one is read first."""
        while texts:
            filled = self._blocks.fill(self._rows, texts, filled)
            texts = {row: text for row, text in texts.items() if filled[row] < len(text)}
            first = self._first_of_each_block(texts, filled)
            rests = {row: len(texts[row]) - filled[row] for row in first}
            for batch in batches(first, rests, self._tokens):
                together = rests[batch[0]] + max(filled[row] for row in batch) <= self._max_length
                for part in [batch] if together else [[row] for row in batch]:
                    self._read_batch({row: texts[row] for row in part}, filled)
            self._blocks.keep(self._rows, {row: texts[row] for row in first})
            texts = {row: text for row, text in texts.items() if row not in first}

    def _first_of_each_block(self, texts: Mapping[int, IntArray], filled: Mapping[int, int]) -> list[int]:
        """Return the rows whose next block is not the next block of a row before, too."""
        blocks = set[bytes]()
        rows = []
        for row, text in texts.items():
            end = (filled[row] // BLOCK + 1) * BLOCK
            block = text[:end].tobytes()
            if end > len(text) or not self._blocks.keeps(len(text)) or block not in blocks:
                rows.append(row)
                blocks.add(block)
        return rows

    def _read_batch(self, texts: Mapping[int, IntArray], filled: Mapping[int, int]) -> None:
        """Read texts after their filled columns, half as many at once from now on if they do not fit into memory."""
        try:
            self._extend(texts, filled)
        except torch.OutOfMemoryError:
            if len(texts) == 1:
                raise
        else:
            self._blocks.read += sum(len(text) - filled[row] for row, text in texts.items())
            return
        torch.cuda.empty_cache()  # outside the handler, which holds the tensors of the failed pass
        rows = [*texts]
        longest = max(len(text) - filled[row] for row, text in texts.items())
        self._tokens = min(self._tokens, longest * (len(rows) // 2))
        for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            self._read_batch({row: texts[row] for row in half}, filled)

    def _extend(self, texts: Mapping[int, IntArray], filled: Mapping[int, int]) -> None:
        """Read texts after their filled columns: one in its row, several as rows of their own, which are copied."""
        rests = [text[filled[row] :] for row, text in texts.items()]
        rests_RN = pad_right(rests)
        if len(texts) == 1:
            [row] = texts
            begin = self._rows.begins(row)
            self._rows.extend_from(slice(row, row + 1), begin, begin + filled[row])
            self._logits(rests_RN, _NO_TARGETS, _NO_TARGETS, self._rows.cache)
            return
        batch, filled_R = KeyValueRows(), np.array([filled[row] for row in texts])
        batch.arrange([KeptPrefix()] * len(rests), filled_R, rests_RN.shape[1])
        beginnings = [
            CopiedColumns(row, self._rows.begins(row), place, batch.begins(place), filled[row])
            for place, row in enumerate(texts)
        ]
        batch.make(self._rows.tensors)
        copy_columns(self._rows.tensors, batch.tensors, beginnings)
        padding = self._padding(batch, slice(0, len(rests)), 0, rests_RN.shape[1], [*map(len, rests)])
        self._logits(rests_RN, _NO_TARGETS, _NO_TARGETS, batch.cache, **(padding if filled_R.any() else {}))
        self._rows.make(batch.tensors)
        ends = [
            CopiedColumns(place, batch.last, row, self._rows.begins(row) + filled[row], len(rests[place]))
            for place, row in enumerate(texts)
        ]
        copy_columns(batch.tensors, self._rows.tensors, ends)

    def _read_last(self, texts: list[IntArray]) -> torch.Tensor:
        """Read the last token of every row's text; return the logits (R x V) after them."""
        last_R1 = torch.from_numpy(np.array([[text[-1]] for text in texts]))
        self._texts = []
        every = slice(0, len(texts))
        padding = self._padding(self._rows, every, 0, 1, [1] * len(texts))
        if len(np.unique(self._rows.lengths_R)) == 1:
            padding = {}
        row_R = torch.arange(len(texts))
        logits_RV = self._logits(last_R1, row_R, torch.zeros_like(row_R), self._rows.cache, **padding)
        self._rows.grew()
        self._texts = texts
        self._blocks.keep(self._rows, {row: text for row, text in enumerate(texts) if len(text) % BLOCK == 0})
        return logits_RV

    def _read_rests(self, sequences: Sequence[ScoringSequence]) -> list[FloatArray]:
        """Read each sequence from the last token before its targets on: one by one if padding makes them too long."""
        rest = max(len(sequence) - int(sequence.targets_P[0]) for sequence in sequences)
        together = rest + int(self._rows.lengths_R.max()) <= self._max_length
        step = len(sequences) if together else 1
        batches = [slice(first, first + step) for first in range(0, len(sequences), step)]
        return [scores_P for batch in batches for scores_P in self._read_targets(sequences[batch], batch)]

    def _read_targets(self, sequences: Sequence[ScoringSequence], batch: slice) -> list[FloatArray]:
        """Return the scores of some sequences, whose rows hold all but their rests."""
        targets = [sequence.targets_P for sequence in sequences]
        counts = [*map(len, targets)]
        rests = [sequence.tokens_N[sequence.targets_P[0] - 1 : -1] for sequence in sequences]
        rests_RN = pad_right(rests)
        row_P = torch.from_numpy(np.repeat(np.arange(len(sequences)), counts))
        column_P = torch.from_numpy(np.concatenate([positions - positions[0] for positions in targets]))
        target_P = torch.from_numpy(np.concatenate([sequence.tokens_N[sequence.targets_P] for sequence in sequences]))
        scores_P = torch.empty(len(row_P))
        step = max(1, self._logits.positions_per_batch // len(rests))
        for first in range(0, rests_RN.shape[1], step):
            input_RN = rests_RN[:, first : first + step]
            here = (column_P >= first) & (column_P < first + input_RN.shape[1])
            padding = self._padding(self._rows, batch, first, input_RN.shape[1], [*map(len, rests)])
            logits_PV = self._logits(input_RN, row_P[here], column_P[here] - first, self._rows.cache, **padding)
            parts = [part.cpu() for part in target_log_probs(logits_PV, target_P[here])]
            scores_P[here] = torch.cat([scores_P[:0], *parts])  # there may be no parts
        self._logits.check_numbers(scores_P)
        return np.split(scores_P.numpy(), np.cumsum(counts)[:-1])

    def _padding(
        self, rows: KeyValueRows, batch: slice, first: int, count: int, rests_R: Sequence[int]
    ) -> dict[str, torch.Tensor]:
        """Let the next pass extend some rows, `first` columns after their ends; return its padding on both sides."""
        lengths_R1 = torch.from_numpy(rows.lengths_R[batch])[:, None]
        rest_R1 = torch.tensor(rests_R)[:, None]
        longest = int(lengths_R1.max())
        rows.extend_from(batch, rows.last - longest, rows.last + first)
        columns_C = torch.arange(longest + first + count)
        mask_RC = (columns_C >= longest - lengths_R1) & (columns_C < longest + rest_R1)
        # padding gets the position of the last token: the next one may be beyond those that the model knows
        positions_RN = lengths_R1 + torch.arange(first, first + count).minimum(rest_R1 - 1)
        padding = {"attention_mask": to_device(mask_RC.long(), self._logits.device)}
        if self._logits.takes_positions:
            padding["position_ids"] = to_device(positions_RN, self._logits.device)
        return padding


def _in_order(logits_RV: torch.Tensor, rows_B: Sequence[int]) -> torch.Tensor:
    """Return the logits (B x V) of some rows, without a copy if these are all in their order."""
    return logits_RV if [*rows_B] == [*range(len(logits_RV))] else logits_RV[rows_B]


def _check_texts(name: str, texts: Sequence[IntArray], max_length: int) -> None:
    shortest, longest = min(map(len, texts)), max(map(len, texts))
    if shortest == 0:
        raise ModelError(f"{name} cannot continue an empty text: give it a prompt of at least one token.")
    if longest > max_length:
        raise ModelError(f"{name} reads at most {max_length} tokens at once, not {longest}.")


def batches(numbers: Iterable[int], lengths: Mapping[int, int] | Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield the numbers of texts, longest first, in batches of at most `tokens` tokens when padded to the first."""
    waiting = sorted(numbers, key=lambda number: -lengths[number])
    while waiting:
        count = max(1, tokens // lengths[waiting[0]])
        yield waiting[:count]
        waiting = waiting[count:]


def _assign_rows(row_texts: Sequence[IntArray], texts: Sequence[IntArray]) -> tuple[list[int], list[KeptPrefix]]:
    """Return the number of each row's text, and the row whose text, maybe without its last token, it continues."""
    rows: dict[bytes, KeptPrefix] = {}
    for row, columns in [(row, len(text) - less) for less in (1, 0) for row, text in enumerate(row_texts)]:
        if columns > 0:
            rows[row_texts[row][:columns].tobytes()] = KeptPrefix(row, columns)
    lengths = sorted({prefix.columns for prefix in rows.values()}, reverse=True)
    kept: dict[int, KeptPrefix] = {}
    staying: dict[int, int] = {}
    for number, text in enumerate(texts):
        beginnings = (text[:length].tobytes() for length in lengths if length <= len(text))
        prefix = next((rows[beginning] for beginning in beginnings if beginning in rows), None)
        if prefix is not None:
            kept[number] = prefix
            if prefix.source < len(texts):
                staying.setdefault(prefix.source, number)
    stays = set(staying.values())
    unplaced = iter([number for number in range(len(texts)) if number not in stays])
    numbers_R = [staying[row] if row in staying else next(unplaced) for row in range(len(texts))]
    return numbers_R, [kept.get(number, KeptPrefix()) for number in numbers_R]


class UncachedDecoder(LocalDecoder):
    """Texts of at most `max_length` tokens, read in batches of `tokens_per_batch` tokens, padding included."""

    def _read(self, texts: Sequence[IntArray]) -> torch.Tensor:
        parts, order = list[torch.Tensor](), list[int]()
        for batch in batches(range(len(texts)), [*map(len, texts)], 1 if self._thresholds else self._tokens):
            last_B = torch.tensor([len(texts[row]) - 1 for row in batch])
            parts.append(self._logits(pad_right([texts[row] for row in batch]), torch.arange(len(batch)), last_B))
            order += batch
        return _in_order(torch.cat(parts), np.argsort(order).tolist())


class StateDecoder(LocalDecoder):
    """Texts with the state that the model returns after each: a new text is read whole, one more token costs one token.

    For recurrent models (Mamba, RWKV), hybrids of recurrent and attention layers, models that count positions by the
    columns of their cache, and models that read all tokens differently beyond a length (LongRoPE). Such a state cannot
    be rewound, padded or cut into blocks, and every family has a form of its own.
    """

    def __init__(self, logits: TargetLogits, max_length: int, tokens_per_batch: int | None = None) -> None:
        super().__init__(logits, max_length, tokens_per_batch)
        self._states: dict[bytes, dict[str, Any]] = {}

    def _read(self, texts: Sequence[IntArray]) -> torch.Tensor:
        distinct = {text.tobytes(): text for text in texts}
        before, self._states = self._states, {}  # until a text is read: a model may change a state before it fails
        beginnings = [text[:-1].tobytes() for text in distinct.values()]
        logits = dict[bytes, torch.Tensor]()
        for number, (key, text) in enumerate(distinct.items()):
            crosses = any(len(text) == threshold + 1 for threshold in self._thresholds)
            state = {} if crosses else before.get(beginnings[number], {})
            if beginnings[number] in beginnings[number + 1 :]:
                state = deepcopy(state)  # another text continues it, too
            logits[key], self._states[key] = self._continue(text, state)
        return torch.stack([logits[text.tobytes()] for text in texts])

    def _continue(self, text: IntArray, state: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        """Read a text whole, or its last token after a state; return the logits (V) and the state after it."""
        positions = {}
        unread = text[-1:] if state else text
        if state and self._logits.takes_positions:
            positions["position_ids"] = to_device(torch.tensor([[len(text) - 1]]), self._logits.device)
        input_1N, last_1 = torch.from_numpy(unread)[None], torch.tensor([len(unread) - 1])
        logits_1V, after = self._logits.continue_state(input_1N, torch.tensor([0]), last_1, state, **positions)
        return logits_1V[0], after

"""Which documents of a corpus to leave out: those that repeat others, that are no text, or that gain less than what
would be read instead; and whether leaving them out helps, on units that did not choose them.

Text that the model itself finds much less likely than that of most documents is noise: words in no order, or broken
characters. A document gains less than others if, where its passage is the first, the first one of another document
would gain more. Its mean over units is drawn to that of all documents (empirical Bayes, Efron and Morris, 1973), and it
is left out if its own mean is below 0 with a probability of 95%. Runs of 13 words find documents that repeat others; of
a large corpus a fixed share of the runs, chosen by their hashes, is compared (Broder, 1997).

Letters of shapes: N observations, one for each unit of a document, D documents, K candidates.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import NormalDist
from typing import Final, Literal

import numpy as np
from pydantic import JsonValue

from ralm.advice.held_out import HeldOut, WorthOptions
from ralm.advice.measure import FIRST, MeasuredUnit, Measuring, Meter
from ralm.advice.verdict import first_retriever, open_meter, too_few
from ralm.corpus.decontamination import NGRAM, run_hash, words_of
from ralm.errors import UsageError
from ralm.protocols import LanguageModel
from ralm.records import Passages, Request
from ralm.retrieval.index import Index
from ralm.retrieval.retriever import matching_passages
from ralm.storage.outputs import replaced_file
from ralm.terminal import progress_bar, track
from ralm.training.gains import HeldOutGain, held_out_gains

Reason = Literal["repeats another document", "unlikely text", "gains less than others"]

_PLURAL: Final[dict[Reason, str]] = {
    "repeats another document": "repeat another one",
    "unlikely text": "are unlikely text",
    "gains less than others": "gain less than others",
}
_CERTAIN: Final = 0.95
_MIN_UNITS: Final = 8
_LEFT: Final = "first without them"
_UNLIKELY: Final = 2.5
"""Standard deviations above the median, as the lower half of the documents has them."""
_READ_TOKENS: Final = 128
_MIN_TOKENS: Final = 32
_AT_ONCE: Final = 64
_REPEATED: Final = 0.8
_RUNS_OF_PASSAGE: Final = 100
_MOST_RUNS: Final = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedDocument:
    """A document to leave out: why, the other one that it repeats, and its gain over other candidates, in nats a
    token."""

    document_id: str
    reason: Reason
    repeats: str | None = None
    gain: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """Documents to leave out of `documents`, of which `never_found` were no candidate on `chosen_on` units, and what
    leaving them out gains on `checked_on` others, per token."""

    pruned: Sequence[PrunedDocument]
    documents: int
    never_found: int
    noun: str
    chosen_on: int
    checked_on: int
    gain: HeldOutGain

    @property
    def sentence(self) -> str:
        """What leaving the documents out gains, in one sentence."""
        counts = Counter(one.reason for one in self.pruned)
        some = " and ".join(f"{count:,} that {_PLURAL[reason]}" for reason, count in counts.items())
        if not self.pruned:
            return (
                f"No document of {self.documents:,} is known to be better left out, by {self.chosen_on:,} {self.noun}."
            )
        low, high = self.gain.low, self.gain.high
        effect = "helps" if low > 0 else "harms" if high < 0 else "makes no difference that can be shown"
        return (
            f"Leaving out {some}, of {self.documents:,} documents, {effect}: {low:+.4f} to {high:+.4f} nats a token on "
            f"{self.checked_on:,} other {self.noun}."
        )

    def as_json(self) -> dict[str, JsonValue]:
        """All figures, and the sentence."""
        return {"sentence": self.sentence, **asdict(self)}

    def write_ids(self, file: Path) -> None:
        """Write the ids of the documents to leave out, one a line, as `--forbidden-documents` and `ralm update
        --remove` read them.

        Raises UsageError if an id has a line break.
        """
        for one in self.pruned:
            if len(one.document_id.splitlines()) != 1 or one.document_id != one.document_id.strip():
                raise UsageError(f"the id {one.document_id!r} cannot be a line of {file}: give documents other ids.")
        with replaced_file(file) as stream:
            stream.writelines(f"{one.document_id}\n" for one in self.pruned)


def prune_corpus(index: Index, model: LanguageModel, held_out: HeldOut, options: WorthOptions | None = None) -> Pruning:
    """Measure all candidates on half of the units, choose the documents to leave out, and check them on the other half.

    Raises UsageError if there are too few units, or the model does not score given texts.
    """
    options = options or WorthOptions()
    meter = open_meter(index, model, options)
    measuring, half = Measuring(meter, held_out, options.budget / 2), held_out.most // 2
    with progress_bar("Choosing", total=half) as advance:
        measuring.until(half, advance, "rivals")
    chosen_on = [*measuring.found]
    if len(chosen_on) < _MIN_UNITS:
        raise too_few(held_out, len(chosen_on), 2 * _MIN_UNITS)
    repeated = repeated_documents(index.passages)
    unlikely = unlikely_documents(meter, options.budget / 2)
    weak = weak_documents(chosen_on)
    pruned = [
        PrunedDocument(document_id=name, reason="repeats another document", repeats=other)
        for name, other in repeated.items()
    ]
    pruned += [PrunedDocument(document_id=name, reason="unlikely text") for name in unlikely if name not in repeated]
    pruned += [
        PrunedDocument(document_id=name, reason="gains less than others", gain=gain)
        for name, gain in weak.items()
        if name not in repeated and name not in unlikely
    ]
    left = matching_passages(index.passages, document_ids=[one.document_id for one in pruned])
    compared = replace(meter, others={_LEFT: first_retriever(index, left)})
    checked = Measuring(compared, held_out, options.budget / 2)
    with progress_bar("Checking", total=half) as advance:
        checked.until(half, advance, "first")
    if len(checked.found) < _MIN_UNITS:
        raise too_few(held_out, len(chosen_on) + len(checked.found), 2 * _MIN_UNITS)
    found = frozenset[str]().union(*(one.candidates for one in chosen_on))
    documents = {document_id for _, document_id, _ in index.passages.origins()}
    return Pruning(
        pruned=pruned,
        documents=len(documents),
        never_found=len(documents - found),
        noun=held_out.noun,
        chosen_on=len(chosen_on),
        checked_on=len(checked.found),
        gain=_gain(checked.found, options.seed),
    )


def _gain(checked: Sequence[MeasuredUnit], seed: int) -> HeldOutGain:
    """What the first passage without the documents gains over the first of all."""
    sums_U1 = np.array([[one.gains[_LEFT][0] - one.gains[FIRST][0]] for one in checked])
    [gain] = held_out_gains(sums_U1, np.array([one.gains[FIRST][1] for one in checked]), np.arange(len(checked)), seed)
    return gain


def unlikely_documents(meter: Meter, minutes: float) -> set[str]:
    """The documents whose first passage the model finds much less likely per token than that of most; as many are read
    as the minutes allow, in random order."""
    firsts: dict[str, int] = {}
    for number, document_id, _ in meter.passages.origins():
        firsts.setdefault(document_id, number)
    names, nats = [*firsts], {}
    ends = time.perf_counter() + 60 * minutes if minutes else math.inf
    order = np.random.default_rng(meter.options.seed).permutation(len(names)).tolist()
    with progress_bar("Reading documents", total=len(names)) as advance:
        for begin in range(0, len(names), _AT_ONCE):
            if time.perf_counter() > ends:
                break
            some = [names[place] for place in order[begin : begin + _AT_ONCE]]
            texts = [meter.documents[firsts[name]][:_READ_TOKENS] for name in some]
            long = [(name, text) for name, text in zip(some, texts, strict=True) if len(text) >= _MIN_TOKENS]
            requests = [Request(document=text[:1], context=text[1:2], targets=text[2:]) for _, text in long]
            for (name, _), log_probs in zip(long, meter.scorer.log_probs(requests), strict=True):
                nats[name] = -float(log_probs.mean(dtype=np.float64))
            advance(len(some))
    values = np.array([*nats.values()])
    if not len(values):
        return set()
    low, middle = np.quantile(values, [0.25, 0.5])  # noise moves what is above the median
    limit = middle + _UNLIKELY * (middle - low) / NormalDist().inv_cdf(0.75)
    return {name for name, value in nats.items() if value > limit}


def weak_documents(measured: Sequence[MeasuredUnit]) -> dict[str, float]:
    """The documents that gain less, as the first passage, than what would be read without them, with a probability of
    95%; with that gain per token, lowest first."""
    observed = _observations(measured)
    if not observed:
        return {}
    names = [*observed]
    counts_D = np.array([len(observed[name]) for name in names])
    means_D = np.array([np.mean(observed[name]) for name in names])
    values_N = np.concatenate([observed[name] for name in names])
    within_N = values_N - np.repeat(means_D, counts_D)
    noise = float((within_N**2).sum() / max(1, len(values_N) - len(names)))
    middle = float(values_N.mean())
    between = max(0.0, float(np.mean((means_D - middle) ** 2 - noise / counts_D)))
    if not noise or not between:
        return {}
    precision_D = counts_D / noise + 1 / between
    drawn_D = (counts_D / noise * means_D + middle / between) / precision_D
    weak_D = drawn_D + NormalDist().inv_cdf(_CERTAIN) / np.sqrt(precision_D) < 0
    return {names[place]: float(drawn_D[place]) for place in np.argsort(drawn_D).tolist() if weak_D[place]}


def _observations(measured: Sequence[MeasuredUnit]) -> dict[str, list[float]]:
    """For each document the mean, in each unit, of its gain per token over the next document."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for one in measured:
        tokens = one.gains[FIRST][1] / max(1, len(one.rivals))
        own: defaultdict[str, list[float]] = defaultdict(list)
        for name, gain in one.rivals:
            own[name].append(gain / tokens)
        for name, gains in own.items():
            found[name].append(float(np.mean(gains)))
    return found


def repeated_documents(passages: Passages) -> dict[str, str]:
    """The documents most of whose runs of 13 words stand in one earlier document, with that document; those that are
    shorter are compared whole."""
    first_of: dict[int, str] = {}
    repeated = {}
    share = 1 + len(passages) * _RUNS_OF_PASSAGE // _MOST_RUNS
    for name, group in groupby(track(passages, "Comparing documents"), key=lambda one: one.document_id):
        words = [word for one in group for word in words_of(one.text)]
        runs = [run_hash(words[place : place + NGRAM]) for place in range(max(1, len(words) - NGRAM + 1))]
        kept = [run for run in runs if run % share == 0] or runs[:1]
        [(other, count)] = Counter(first_of.get(run, "") for run in kept).most_common(1)
        if other not in ("", name) and count >= _REPEATED * len(kept):
            repeated[name] = other
            continue
        for run in kept:
            first_of.setdefault(run, name)
    return repeated

"""How many requests an ensemble takes over many strides, and how fast they are sent: several at once, or one by one."""

import time
from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import JsonValue

from benchmarks.api.instant_server import instant_server
from benchmarks.api.material import Material, asked_model
from ralm.lm.api.model import ApiModel
from ralm.lm.scoring import Scorer
from ralm.protocols import Tokenizer
from ralm.reading.ensemble import Ensemble
from ralm.reading.parts import Parts
from ralm.reading.plan import Windows
from ralm.reading.score import score_text
from ralm.records import FloatArray, Request, ScoringSequence


class Passes:
    """A model that keeps what it is to read, and gives every token the same probability."""

    name = "passes"
    config: dict[str, JsonValue] = {"name": "passes"}  # noqa: RUF012

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.asked: list[ScoringSequence] = []

    def score(self, passes: Sequence[ScoringSequence]) -> Iterator[FloatArray]:
        self.asked += passes
        return (np.full(len(one.targets_P), -1, dtype=np.float32) for one in passes)


class CountingScorer(Scorer):
    """Counts the requests that it gets."""

    asked = 0

    def log_probs(self, requests: Sequence[Request]) -> list[FloatArray]:
        self.asked += len(requests)
        return super().log_probs(requests)


def planned(
    material: Material, windows: Windows, strides: int, documents: int
) -> tuple[dict[str, object], list[ScoringSequence]]:
    """A row of counts, and the passes that remain: each is one request."""
    prepared = material.prepared(strides, windows)
    hits, passages = material.source.find(prepared, material.model.tokenizer, documents)
    model = Passes(material.model.tokenizer, prepared.plan.options.max_length)
    scorer = CountingScorer(model)
    score_text(prepared, scorer, hits, passages, Parts(reader=Ensemble(documents=documents)))
    counts: dict[str, object] = {
        "windows": windows,
        "strides": len(prepared.plan),
        "pairs": scorer.asked,
        "merged: equal": scorer.asked - scorer.scored,
        "merged: prefixes": scorer.scored - len(model.asked),
        "requests": len(model.asked),
        "tokens a request": float(np.mean([len(one) for one in model.asked])),
    }
    return counts, model.asked


def spread(passes: Sequence[ScoringSequence], count: int) -> list[ScoringSequence]:
    """About this many of some passes, evenly spread."""
    return list(passes[:: max(1, len(passes) // count)])


def rate(model: ApiModel, passes: Sequence[ScoringSequence]) -> tuple[float, float]:
    """Requests a second, and the client's milliseconds of processor time for each.

    A few requests more than passes are sent: they see whether the model is still the same.
    """
    before, begin, used = model.client.usage, time.perf_counter(), time.process_time()
    for _ in model.score(passes):
        pass
    seconds, used = time.perf_counter() - begin, time.process_time() - used
    sent = model.client.usage.requests - before.requests
    assert sent >= len(passes)
    return sent / seconds, 1000 * used / sent


def requests_table(
    material: Material, *, strides: int, documents: int, seconds: float, at_once: int, sample: int, alone: int
) -> Iterator[dict[str, object]]:
    """A row for each kind of windows."""
    tokenizer = material.model.tokenizer
    texts = [tokenizer.decode(np.array([token])) for token in range(tokenizer.vocabulary)]
    with instant_server(texts, material.model.max_length, seconds) as name:
        windows: Windows
        for windows in ("sliding", "blocked"):
            counts, passes = planned(material, windows, strides, documents)
            with asked_model(name, at_once=1) as model:
                slow, _ = rate(model, spread(passes, alone))
            with asked_model(name, at_once=at_once) as model:
                fast, used = rate(model, spread(passes, sample))
            yield {
                **counts,
                "requests/s one by one": slow,
                f"requests/s {at_once} at once": fast,
                "ratio": fast / slow,
                "client, ms a request": used,
            }

"""Folders of signals that tests make, of a real index."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import JsonValue

from ralm.storage.manifest import write_manifest
from ralm.training.examples import EXAMPLE_SCHEMA
from ralm.training.signals import CANDIDATE_SCHEMA, CANDIDATES, EXAMPLES, SIGNALS_KIND, Signals, open_signals


def save_zipf_corpus(file: Path) -> None:
    """40 documents of random words, some of them frequent."""
    draws = np.random.default_rng(0)
    with file.open("w") as stream:
        for number in range(40):
            text = " ".join(f"word{word}" for word in draws.zipf(1.5, 40) % 50)
            stream.write(json.dumps({"id": f"d{number}", "title": f"t{number}", "text": text}) + "\n")


def save_signals(
    folder: Path,
    index_fingerprint: str,
    prefixes: Sequence[str],
    passages: Sequence[Sequence[int]],
    mean_log_probs: Sequence[Sequence[float]],
    *,
    scores: Sequence[Sequence[float]] | None = None,
    baselines: Sequence[float] | None = None,
    tokens: int | Sequence[int] = 4,
    documents: Sequence[str] | None = None,
    rows: Sequence[tuple[int, int | None, float | None, list[float]]] | None = None,
    config: Mapping[str, JsonValue] | None = None,
) -> Signals:
    """Signals with these candidates and mean token log-probabilities for each prefix; every token of a continuation has
    the mean. `tokens` is the length of each continuation. `rows` replace those of the candidates."""
    count = len(prefixes)
    lengths = [tokens] * count if isinstance(tokens, int) else tokens
    scores = scores or [np.arange(len(row), 0, -1, dtype=float).tolist() for row in passages]
    baselines = [-3.0] * count if baselines is None else baselines
    examples = {
        "example": range(count),
        "document_id": documents or [f"document {i}" for i in range(count)],
        "begin": [128] * count,
        "query": prefixes,
        "prefix": prefixes,
        "continuation": ["continuation"] * count,
        "prefix_tokens": [list(range(8))] * count,
        "continuation_tokens": [list(range(length)) for length in lengths],
        "runs": [[]] * count,
    }
    made: list[tuple[int, int | None, float | None, list[float]]] = []
    for example in range(count):
        made.append((example, None, None, [baselines[example]] * lengths[example]))
        found = zip(passages[example], scores[example], mean_log_probs[example], strict=True)
        made += [(example, passage, score, [mean] * lengths[example]) for passage, score, mean in found]
    columns = list(zip(*(rows or made), strict=True))
    (folder / CANDIDATES).mkdir(parents=True)
    pq.write_table(
        pa.table({name: list(values) for name, values in examples.items()}, EXAMPLE_SCHEMA), folder / EXAMPLES
    )
    candidates = dict(zip(CANDIDATE_SCHEMA.names, map(list, columns), strict=True))
    pq.write_table(pa.table(candidates, CANDIDATE_SCHEMA), folder / CANDIDATES / "00000.parquet")
    write_manifest(
        folder,
        kind=SIGNALS_KIND,
        settings={"config": {"index": index_fingerprint, **(config or {})}},
        counts={"examples": count},
    )
    return open_signals(folder)

"""A run on disk: a folder with a row per target token, a summary, and the configuration and environment behind them.

tokens.parquet   position, token, text, log_prob, baseline_log_prob, passage, document_id, title;
                 of an ensemble also passages and posteriors, a list per token
summary.json     the measures, the configuration, the baseline's measures where asked
manifest.json    the configuration again, the environment, and a checksum of each file
"""

import hashlib
import json
import math
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import JsonValue

from ralm.evaluation.perplexity import Evaluation
from ralm.folders import new_folder, write_manifest
from ralm.pipeline import PassageSource, ReaderOptions
from ralm.protocols import LanguageModel, Tokenizer
from ralm.reading.concatenation import ConcatenationOptions
from ralm.reading.ensemble import EnsembleOptions
from ralm.reading.plan import PlanOptions
from ralm.records import NO_PASSAGE, Passages, Provenance, ScoredTokens
from ralm.reranking.options import RerankOptions

FORMAT_VERSION: Final = 1
TOKENS: Final = "tokens.parquet"
SUMMARY: Final = "summary.json"


def write_run(
    out: Path | str, evaluation: Evaluation, tokenizer: Tokenizer, config: dict[str, JsonValue], *, force: bool
) -> None:
    """Write a run folder, whole or not at all.

    Raises FolderExistsError where `out` is there and `force` does not say to replace it.
    """
    baseline = None if evaluation.baseline is None else evaluation.baseline.scored
    table = token_table(evaluation.reading.scored, baseline, tokenizer, evaluation.passages)
    with new_folder(Path(out), force=force) as folder:
        pq.write_table(table, folder / TOKENS, compression="zstd")
        (folder / SUMMARY).write_text(to_json(evaluation.summary(config), indent=2) + "\n", encoding="utf-8")
        write_manifest(
            folder,
            kind="run",
            format_version=FORMAT_VERSION,
            settings={"config": config, "environment": environment()},
            counts={"targets": table.num_rows},
        )


def evaluation_config(
    path: Path,
    text: str,
    model: LanguageModel,
    plan: PlanOptions,
    source: PassageSource | None,
    limit_tokens: int | None,
    reader: ReaderOptions | None = None,
    ranker: LanguageModel | None = None,
) -> dict[str, JsonValue]:
    """Everything that decides the figures of a run, by name: equal configurations give equal figures."""
    return {
        "text": {"path": str(path), "sha256": hashlib.sha256(text.encode()).hexdigest(), "limit_tokens": limit_tokens},
        "model": model.config,
        "passages": None if source is None else source.config,
        "reader": None if source is None else _reader_config(reader or RerankOptions(), ranker),
        "plan": asdict(plan),
    }


def _reader_config(reader: ReaderOptions, ranker: LanguageModel | None) -> dict[str, JsonValue]:
    if isinstance(reader, EnsembleOptions):
        return {"ensemble": asdict(reader)}
    if isinstance(reader, ConcatenationOptions):
        return {"concatenation": asdict(reader)}
    return {"rerank": asdict(reader), "model": None if ranker is None else ranker.config}


def token_table(
    scored: ScoredTokens, baseline: ScoredTokens | None, tokenizer: Tokenizer, passages: Passages
) -> pa.Table:
    """A row per target token; `passage`, `document_id` and `title` are null where a token was read without passage,
    `baseline_log_prob` where no baseline was asked for."""
    passages_T = pa.array(scored.passages_T, mask=scored.passages_T == NO_PASSAGE)
    numbers, inverse_T = np.unique(scored.passages_T, return_inverse=True)
    sources = [None if number == NO_PASSAGE else passages[int(number)] for number in numbers]
    kinds, kind_T = np.unique(scored.tokens_T, return_inverse=True)
    texts = [tokenizer.decode(np.array([kind])) for kind in kinds]
    return pa.table(
        {
            "position": scored.positions_T,
            "token": scored.tokens_T,
            "text": pa.array(texts, pa.string()).take(pa.array(kind_T)),
            "log_prob": scored.log_probs_T,
            "baseline_log_prob": pa.nulls(len(scored), pa.float32()) if baseline is None else baseline.log_probs_T,
            "passage": passages_T,
            "document_id": pa.array([s and s.document_id for s in sources], pa.string()).take(pa.array(inverse_T)),
            "title": pa.array([s and s.title for s in sources], pa.string()).take(pa.array(inverse_T)),
            **({} if scored.provenance is None else _provenance_columns(scored.provenance)),
        }
    )


def _provenance_columns(provenance: Provenance) -> dict[str, pa.Array]:
    """For each token the passages of its ensemble, and how much of its probability came from each."""
    found_TK = provenance.passages_TK != NO_PASSAGE
    offsets = pa.array(np.concatenate([[0], found_TK.sum(axis=1).cumsum()]), pa.int32())
    return {
        "passages": pa.ListArray.from_arrays(offsets, provenance.passages_TK[found_TK]),
        "posteriors": pa.ListArray.from_arrays(offsets, provenance.posteriors_TK[found_TK]),
    }


def environment() -> dict[str, JsonValue]:
    """What the figures of a run may depend on besides its configuration; null for a package that is not installed."""
    packages = (
        "torch",
        "transformers",
        "tokenizers",
        "numpy",
        "numba",
        "pyarrow",
        "sentence-transformers",
        "faiss-cpu",
    )
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        **{package: _version(package) for package in packages},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def to_json(value: JsonValue, indent: int | None = None) -> str:
    """JSON that any reader takes: a number that is infinite or none at all becomes null."""
    return json.dumps(_finite(value), ensure_ascii=False, indent=indent, allow_nan=False)


def _finite(value: JsonValue) -> JsonValue:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value

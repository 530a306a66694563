"""Writes and reads the Arrow tables of a run: a row per target token, and a row per passage that was read.

A report needs only these two tables, not the index.
"""

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ralm.corpus.documents import metadata_from_json, metadata_to_json
from ralm.errors import DamagedFolderError, UsageError
from ralm.evaluation.perplexity import Evaluation
from ralm.reading.provenance import TracedText, contributions, gains, used_passages
from ralm.records import NO_PASSAGE, Passage, Passages, Provenance

TEXT_BEFORE: Final = b"text_before"
_TOKEN_COLUMNS: Final = {
    "text": pa.string(),
    "log_prob": pa.float32(),
    "baseline_log_prob": pa.float32(),
    "passages": pa.list_(pa.int64()),
    "posteriors": pa.list_(pa.float32()),
}
PASSAGE_COLUMNS: Final = {
    "passage": pa.int64(),
    "document_id": pa.string(),
    "title": pa.string(),
    "text": pa.string(),
}
_CONTRIBUTION_COLUMNS: Final = {"gain": pa.float64(), "tokens": pa.int64(), "helped": pa.int64(), "hurt": pa.int64()}


def build_token_table(evaluation: Evaluation) -> pa.Table:
    """Return the table with a row per target token."""
    scored, baseline = evaluation.reading.scored, evaluation.baseline
    numbers, inverse_T = np.unique(scored.passages_T, return_inverse=True)
    sources = [None if number == NO_PASSAGE else evaluation.passages[int(number)] for number in numbers]
    found_TK = scored.provenance.passages_TK != NO_PASSAGE
    offsets = pa.array(np.concatenate([[0], found_TK.sum(axis=1).cumsum()]), pa.int32())
    before, texts = evaluation.prepared.token_texts(scored.positions_T)
    baseline_log_prob = gain = pa.nulls(len(scored), pa.float32())
    if baseline is not None:
        baseline_log_prob = pa.array(baseline.scored.log_probs_T)
        gain = pa.array(gains(scored.log_probs_T, baseline.scored.log_probs_T), pa.float32())
    table = pa.table(
        {
            "document": evaluation.prepared.document_T,
            "position": scored.positions_T,
            "token": scored.tokens_T,
            "text": pa.array(texts, pa.string()),
            "log_prob": scored.log_probs_T,
            "baseline_log_prob": baseline_log_prob,
            "gain": gain,
            "passage": pa.array(scored.passages_T, mask=scored.passages_T == NO_PASSAGE),
            "document_id": pa.array([s and s.document_id for s in sources], pa.string()).take(pa.array(inverse_T)),
            "title": pa.array([s and s.title for s in sources], pa.string()).take(pa.array(inverse_T)),
            "passages": pa.ListArray.from_arrays(offsets, scored.provenance.passages_TK[found_TK]),
            "posteriors": pa.ListArray.from_arrays(offsets, scored.provenance.posteriors_TK[found_TK]),
        }
    )
    return table.replace_schema_metadata({TEXT_BEFORE: before.encode()})


def build_passage_table(evaluation: Evaluation) -> pa.Table:
    """Return the table with a row per passage that was read, the largest contribution first, then those without."""
    scored, baseline = evaluation.reading.scored, evaluation.baseline
    provenance = scored.provenance
    used = used_passages(provenance, evaluation.passages)
    rows = []
    if baseline is not None:
        rows = contributions(provenance, gains(scored.log_probs_T, baseline.scored.log_probs_T))
    rest = [used[number] for number in sorted({*used} - {row.passage for row in rows})]
    contributed = {
        name: pa.array([getattr(row, name) for row in rows] + [None] * len(rest), of)
        for name, of in _CONTRIBUTION_COLUMNS.items()
    }
    return pa.table({**passage_columns([*(used[row.passage] for row in rows), *rest]), **contributed})


def build_traced_text(run: Path, tokens: pa.Table, passages: pa.Table) -> TracedText:
    """Return the text of a run from its tables; UsageError, which names the `run`, if it has no baseline."""
    tokens = select_columns(run, tokens, _TOKEN_COLUMNS, nullable=("baseline_log_prob",))
    passages = select_columns(run, passages, {**PASSAGE_COLUMNS, "metadata": pa.string()})
    if tokens["baseline_log_prob"].null_count:
        raise UsageError(
            f"{run} was scored with passages only: score the text again with a baseline (`ralm eval --baseline`)."
        )
    provenance, rows = _provenance(run, tokens), passages.to_pylist()
    if not {NO_PASSAGE, *(row["passage"] for row in rows)}.issuperset(np.unique(provenance.passages_TK).tolist()):
        raise _damaged(run, "its tokens were read with passages that are missing")
    return TracedText(
        before=(tokens.schema.metadata or {}).get(TEXT_BEFORE, b"").decode(errors="replace"),
        texts=tokens["text"].to_pylist(),
        log_probs_T=tokens["log_prob"].to_numpy(),
        baseline_T=tokens["baseline_log_prob"].to_numpy(),
        provenance=provenance,
        passages={row["passage"]: passage_in(run, row) for row in rows},
    )


def passage_in(run: Path, row: Mapping[str, Any]) -> Passage:
    """Return the passage in a row."""
    try:
        metadata = metadata_from_json(row["metadata"])
    except (ValueError, RecursionError):
        raise _damaged(run, f"the metadata of passage {row['passage']} is not a JSON object") from None
    return Passage(row["passage"], row["document_id"], row["title"], row["text"], metadata=metadata)


def passage_columns(passages: Passages) -> dict[str, pa.Array]:
    """Return the columns of a table of passages, by name."""
    return {
        "passage": pa.array([passage.number for passage in passages], pa.int64()),
        "document_id": pa.array([passage.document_id for passage in passages], pa.string()),
        "title": pa.array([passage.title for passage in passages], pa.string()),
        "text": pa.array([passage.text for passage in passages], pa.string()),
        "metadata": pa.array([metadata_to_json(passage.metadata) for passage in passages], pa.string()),
    }


@contextmanager
def damage_errors(path: Path, remedy: str = "score the text again") -> Iterator[None]:
    """Turn errors of reading a damaged file into a DamagedFolderError with a remedy."""
    try:
        yield
    except (OSError, ValueError, LookupError, RecursionError, pa.ArrowException) as error:
        raise _damaged(path, str(error).strip().partition("\n")[0], remedy) from error


def select_columns(
    run: Path,
    table: pa.Table,
    columns: Mapping[str, pa.DataType],
    nullable: Container[str] = (),
    remedy: str = "score the text again",
) -> pa.Table:
    """Return columns of a table after a check of their types; only those in `nullable` may have missing values."""
    try:
        chosen = table.select(list(columns))
        chosen.validate(full=True)
    except (KeyError, pa.ArrowException, UnicodeDecodeError) as error:  # names of columns are decoded on use
        raise _damaged(run, f"one of its tables cannot be read ({error})", remedy) from None
    for name, kind in columns.items():
        stored = chosen[name].type
        lists = pa.types.is_list(stored) and pa.types.is_list(kind)
        alike = stored.value_type == kind.value_type if lists else stored == kind
        if not alike or (chosen[name].null_count and name not in nullable):
            raise _damaged(run, f"its column {name} has another type or missing values", remedy)
    return chosen


def _damaged(run: Path, how: str, remedy: str = "score the text again") -> DamagedFolderError:
    return DamagedFolderError(f"{run} is damaged: {how}; {remedy}, or restore it from a copy.")


def _provenance(run: Path, tokens: pa.Table) -> Provenance:
    """Return the provenance from its columns; a token without a passage has all its weight in the first column."""
    passages, posteriors = (tokens[name].combine_chunks() for name in ("passages", "posteriors"))
    counts_T = np.diff(passages.offsets.to_numpy())
    places, shares = passages.flatten(), posteriors.flatten()
    if places.null_count or shares.null_count or not np.array_equal(counts_T, np.diff(posteriors.offsets.to_numpy())):
        raise _damaged(run, "its tokens have passages and posterior weights that do not match")
    found_TK = np.arange(max(1, counts_T.max(initial=0))) < counts_T[:, None]
    passages_TK = np.full(found_TK.shape, NO_PASSAGE, dtype=np.int64)
    posteriors_TK = np.zeros(found_TK.shape, dtype=np.float32)
    passages_TK[found_TK], posteriors_TK[found_TK] = places.to_numpy(), shares.to_numpy()
    posteriors_TK[counts_T == 0, 0] = 1
    return Provenance(passages_TK=passages_TK, posteriors_TK=posteriors_TK)

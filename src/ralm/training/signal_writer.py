"""Writes a folder of signals in parts. `OUT.unfinished/` keeps the parts that are done, for a process that resumes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import JsonValue

from ralm.corpus.documents import Fields
from ralm.environment import environment
from ralm.protocols import LanguageModel, Retriever
from ralm.records import IntArray
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.retriever import open_retriever
from ralm.runs.resume import unfinished_run, unfinished_store
from ralm.storage.manifest import write_manifest
from ralm.storage.outputs import check_output, new_folder
from ralm.terminal import no_progress, path_text, progress_bar
from ralm.training import signals
from ralm.training.candidates import OnlineExamples
from ralm.training.examples import EXAMPLE_SCHEMA
from ralm.training.options import CandidateOptions, ExampleOptions
from ralm.validation import config_of

_PART: Final = 128
"""Examples of a part: what a killed process loses at most."""


def make_signals(
    out: Path | str,
    sources: str | Sequence[str],
    index: Index | Path | str,
    model: LanguageModel,
    options: ExampleOptions | None = None,
    candidates: CandidateOptions | None = None,
    *,
    retriever: Retriever | None = None,
    fields: Fields | None = None,
    skip_bad: bool = False,
    force: bool = False,
) -> signals.Signals:
    """Sample examples from training text, measure their candidates with a language model, and write a folder.

    If this is killed, call it again with the same arguments to resume.

    Args:
        out: Folder of the signals.
        sources: Training text: files, folders, URLs or data sets.
        index: Index of the candidates, or its folder.
        model: Language model that measures.
        options: How examples are sampled.
        candidates: How many candidates an example has, and how they are read.
        retriever: Finds candidates among the passages of the index; None is its BM25.
        fields: Fields of the records of sources.
        skip_bad: Skip records that cannot be read.
        force: Replace signals that are there.

    Raises:
        FolderExistsError: If `out` exists without `force`.
        UsageError: If signals with other settings were begun there. `OnlineExamples`, the retriever and the model raise
            others.
    """
    out = Path(out)
    check_output(out, kind=signals.SIGNALS_KIND, force=force)
    index = index if isinstance(index, Index) else open_index(index)
    retriever = retriever or open_retriever(index)
    examples = OnlineExamples(sources, index, model, options, candidates, fields=fields, skip_bad=skip_bad)
    config = {"index": index.fingerprint, "retriever": config_of(retriever, "retriever"), **examples.config}
    with (
        unfinished_run(out, config, force=force) as work,
        unfinished_store(work, "parts") as parts,
        new_folder(out, kind=signals.SIGNALS_KIND, force=force) as folder,
        pq.ParquetWriter(folder / signals.EXAMPLES, EXAMPLE_SCHEMA, compression="zstd") as writer,
        progress_bar("Measuring", total=len(examples)) as advance,
        no_progress(),
    ):
        (folder / signals.CANDIDATES).mkdir()
        for number, begin in enumerate(range(0, len(examples), _PART)):
            part_B = np.arange(begin, min(begin + _PART, len(examples)))
            writer.write_table(examples.table(part_B))
            key = str(number).encode()
            stored = parts.get([key])
            if not stored:
                stored[key] = _candidate_file(examples, part_B, retriever)
                parts.put(stored.items())
            (folder / signals.CANDIDATES / f"{number:05}.parquet").write_bytes(stored[key])
            advance(len(part_B))
        writer.close()
        settings: dict[str, JsonValue] = {
            "config": {**config, signals.INDEX_PATH: path_text(index.path.resolve())},
            "environment": environment(),
        }
        write_manifest(folder, kind=signals.SIGNALS_KIND, settings=settings, counts={"examples": len(examples)})
    return signals.open_signals(out)


def _candidate_file(examples: OnlineExamples, part_B: IntArray, retriever: Retriever) -> bytes:
    """Return the candidates of a part and the log-probabilities after them, as a file of `CANDIDATES`."""
    hits = examples.candidates(part_B, retriever, examples.reading.candidates)
    rows = []
    for row, after in enumerate(examples.log_probs(part_B, hits, alone=True)):
        for hit, log_probs in zip([(None, None), *hits.of(row)], after, strict=True):
            rows.append((part_B[row], *hit, log_probs))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([*zip(*rows, strict=True)], signals.CANDIDATE_SCHEMA), sink, compression="zstd")
    return bytes(sink.getvalue())

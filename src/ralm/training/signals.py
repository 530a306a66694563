"""Signals: what a frozen language model makes of candidate passages, measured once and kept as tables in a folder.

examples.parquet     a row per example, see `ralm.training.examples.EXAMPLE_SCHEMA`
candidates/N.parquet a row per example and passage; one without passage is the text without any passage
manifest.json        what decided the figures, and a checksum of each file
OUT.unfinished/      the parts that are done, for a process that resumes

Letters of shapes: E examples, K candidates.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import JsonValue

from ralm.corpus.documents import Fields
from ralm.errors import FolderError, UsageError
from ralm.protocols import LanguageModel, Retriever
from ralm.records import NO_PASSAGE, DoubleArray, FloatArray, IntArray
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.retriever import open_retriever
from ralm.runs.resume import unfinished_run, unfinished_store
from ralm.runs.run import damage_errors
from ralm.storage.manifest import Manifest, environment, kind_of, open_consistently, read_manifest, write_manifest
from ralm.storage.outputs import FolderKind, check_output, new_folder
from ralm.terminal import no_progress, path_text, progress_bar
from ralm.training.examples import EXAMPLE_SCHEMA, OnlineExamples
from ralm.training.options import CandidateOptions, ExampleOptions, TrainingOptions
from ralm.validation import config_of

SIGNALS_KIND: Final = FolderKind("signals")
EXAMPLES: Final = "examples.parquet"
CANDIDATES: Final = "candidates"
INDEX_PATH: Final = "index_path"
"""The key of the configuration that says where the index was."""
_ROUNDING: Final = 1e-3
"""How far the rounding of a model may lift the log-probability of a continuation above 0."""
_FEWEST_DOCUMENTS: Final = 10
"""Fewer documents than these are not split."""
_REMEDY: Final = "measure the signals again"
_PART: Final = 128
"""Examples that are measured together: what a killed process loses at most."""
CANDIDATE_SCHEMA: Final = pa.schema(
    {"example": pa.int64(), "passage": pa.int64(), "score": pa.float32(), "log_probs": pa.list_(pa.float32())}
)

TextColumn = Literal["query", "prefix", "continuation"]


@dataclass(frozen=True, slots=True, eq=False)
class Signals:
    """The signals of E examples with up to K candidates each, read from the folder `path`.

    `passages_EK` (int64): the candidates in the retriever's order, padded with `NO_PASSAGE`. `log_probs_EK` (float64):
    the natural log-probability of the whole continuation after each candidate, padded with -inf. `baseline_E`
    (float64): the same without a passage. `tokens_E` (int64): the number of tokens of each continuation.
    `token_log_probs_EKT` (float32): those of each token, without a passage in the first column, padded with 0.
    `documents_E`: the ids of the documents that the examples are from.
    """

    path: Path
    manifest: Manifest
    documents_E: Sequence[str]
    tokens_E: IntArray
    passages_EK: IntArray
    log_probs_EK: DoubleArray
    baseline_E: DoubleArray
    token_log_probs_EKT: FloatArray

    def __len__(self) -> int:
        return len(self.tokens_E)

    @property
    def width(self) -> int:
        """Return K: the most candidates of an example, at least 1."""
        return self.passages_EK.shape[1]

    @property
    def fingerprint(self) -> str:
        """Return a short hash of all files."""
        return hashlib.sha256(str(sorted(self.manifest.files.items())).encode()).hexdigest()[:16]

    @property
    def config(self) -> Mapping[str, Any]:
        """Return what decided the figures: index, retriever, language model, options and texts."""
        config = self.manifest.settings.get("config")
        return config if isinstance(config, dict) else {}

    @property
    def has_choice_E(self) -> NDArray[np.bool_]:
        """Return which examples have two candidates or more (bool, E)."""
        return (self.passages_EK != NO_PASSAGE).sum(axis=1) > 1

    @property
    def is_possible_E(self) -> NDArray[np.bool_]:
        """Return which continuations are possible to the language model after all candidates and alone (bool, E)."""
        there_EK = self.passages_EK != NO_PASSAGE
        return ~(np.isneginf(np.where(there_EK, self.log_probs_EK, 0)).any(axis=1) | np.isneginf(self.baseline_E))

    def texts(self, column: TextColumn) -> pa.ChunkedArray:
        """Return a column of texts, a string for each example; DamagedFolderError if it cannot be read."""
        with damage_errors(self.path, _REMEDY):
            return pq.read_table(self.path / EXAMPLES, columns=[column]).column(column)


def split_documents(documents_E: Sequence[str], held_out: float, seed: int) -> tuple[IntArray, IntArray]:
    """Return the examples to train with and those to hold out (int64, rising), from examples of these documents.

    The share `held_out` of the documents is held out, at least one if it is above 0 and one is left, from all sizes
    alike: sorted by their examples, one of each group of neighbours.
    """
    document_E = _numbers(documents_E)
    sizes_D = np.bincount(document_E)
    count = min(max(1, round(held_out * len(sizes_D))), len(sizes_D) - 1) if held_out > 0 else 0
    if count <= 0:
        return np.arange(len(document_E)), np.arange(0)
    draws = np.random.default_rng([seed, 3])
    shuffled_D = draws.permutation(len(sizes_D))
    by_size_D = shuffled_D[np.argsort(sizes_D[shuffled_D], kind="stable")]
    ends = np.linspace(0, len(sizes_D), count + 1).astype(int)[1:-1]
    out_E = np.isin(document_E, [draws.choice(group_D) for group_D in np.split(by_size_D, ends)])
    return np.flatnonzero(~out_E), np.flatnonzero(out_E)


def _numbers(documents_E: Sequence[str]) -> IntArray:
    """Return the number of the document of each example, in the order of their first examples."""
    return pa.array(documents_E, pa.string()).dictionary_encode().indices.to_numpy().astype(np.int64)


def is_signals(path: Path) -> bool:
    """Return whether a path is a folder of signals; FolderError if ralm wrote a folder of another kind there."""
    try:
        kind = kind_of(path)
    except FolderError:
        return False
    if kind != SIGNALS_KIND.name:
        raise FolderError(f"{path} is a ralm {kind}, not a ralm {SIGNALS_KIND}.")
    return True


def open_signals(path: Path | str) -> Signals:
    """Read a folder of signals.

    Raises:
        FolderError: If it is none.
        DamagedFolderError: If it is not whole.
    """
    return open_consistently(Path(path), partial(_open, Path(path)))


def index_of(signals: Signals, index: Index | Path | str | None) -> Index:
    """Return the index of signals, given or named by them; UsageError if it is another one, or missing."""
    if index is None:
        said = signals.config.get(INDEX_PATH)
        if not isinstance(said, str) or not Path(said).exists():
            raise UsageError(
                f"the index that the signals in {signals.path} were measured with "
                f"{f'is not in {said} any more' if said else 'is not recorded'}: give it as `index`."
            )
        index = said
    index = index if isinstance(index, Index) else open_index(index)
    measured: JsonValue = signals.config.get("index")
    if measured != index.fingerprint:
        raise UsageError(
            f"the signals in {signals.path} are of another index (fingerprint {measured}) than {index.path} "
            f"({index.fingerprint}): give the index they were measured with, or make them again."
        )
    return index


def split_with_choice(signals: Signals, options: TrainingOptions, most_tested: int = 0) -> tuple[IntArray, ...]:
    """Return what `split_for_training` gives, of examples with two candidates and finite log-probabilities."""
    used_E = np.flatnonzero(signals.has_choice_E & signals.is_possible_E)
    what = (
        f"of the {len(signals):,} examples in {signals.path} only {len(used_E):,} have two candidates or more "
        "and finite log-probabilities"
    )
    if not len(used_E):
        raise UsageError(f"{what}: measure more.")
    documents = [signals.documents_E[example] for example in used_E.tolist()]
    return tuple(used_E[part_E] for part_E in split_for_training(documents, options, what, most_tested))


def split_for_training(
    documents_E: Sequence[str],
    options: TrainingOptions,
    what: str = "there are too few examples",
    most_tested: int = 0,
) -> tuple[IntArray, IntArray, IntArray]:
    """Return the examples to train with, to choose by (when to stop, temperatures), and to test on: whole documents.

    Those to choose by are at most `evaluated`, those to test on also `most_tested` if that is more. Raises UsageError
    if some of fewer than ten documents are to be held out.
    """
    count = len({*documents_E})
    if options.held_out > 0 and count < _FEWEST_DOCUMENTS:
        raise UsageError(
            f"{what}, of {count} document{'s' * (count != 1)}, and holding some out needs at least "
            f"{_FEWEST_DOCUMENTS}: give more text, or fewer examples of a sequence (`per_sequence`), or train without "
            "saying what it gains (`held_out` 0)."
        )
    share = max(options.held_out, 2 / count) if options.held_out else 0.0  # one to choose by, one to test on
    training_E, held_out_E = split_documents(documents_E, share, options.seed)
    development_E, tested_E = held_out_E, held_out_E[:0]
    if len(held_out_E) > 1:
        split = split_documents([documents_E[example] for example in held_out_E.tolist()], 0.5, options.seed + 1)
        development_E, tested_E = (held_out_E[half] for half in split)
    most = max(options.evaluated, most_tested)
    return training_E, spread(development_E, documents_E, options.evaluated), spread(tested_E, documents_E, most)


def spread(examples_E: IntArray, documents_E: Sequence[str], max_count: int) -> IntArray:
    """Return at most `max_count` examples, rising: one of each document, a second of each, and so on."""
    shuffled_E = np.random.default_rng(0).permutation(examples_E)
    document_E = _numbers([documents_E[example] for example in shuffled_E.tolist()])
    sizes_D = np.bincount(document_E)
    turn_E = np.empty(len(document_E), dtype=np.int64)
    turn_E[np.argsort(document_E, kind="stable")] = np.concatenate([*map(np.arange, sizes_D), np.arange(0)])
    return np.sort(shuffled_E[np.argsort(turn_E, kind="stable")[:max_count]])


def _open(path: Path) -> Signals:
    manifest = read_manifest(path, kind=SIGNALS_KIND)
    files = sorted(name for name in manifest.files if name.startswith(f"{CANDIDATES}/"))
    with damage_errors(path, _REMEDY):
        examples = pq.read_table(path / EXAMPLES, columns=["document_id", "continuation_tokens"])
        table = pa.concat_tables(pq.read_table(path / name, schema=CANDIDATE_SCHEMA) for name in files)
        tokens_E = pc.list_value_length(examples["continuation_tokens"]).to_numpy().astype(np.int64)
        example_R, counts_R = table["example"].to_numpy(), pc.list_value_length(table["log_probs"]).to_numpy()
        column_R = np.arange(len(table)) - np.searchsorted(example_R, example_R)
        is_whole = (
            (np.diff(example_R) >= 0).all()
            and np.array_equal(example_R[column_R == 0], np.arange(len(tokens_E)))
            and np.array_equal(table["passage"].is_null(), column_R == 0)
            and np.array_equal(counts_R, tokens_E[example_R])
            and tokens_E.all()
        )
        if not is_whole:
            raise ValueError("its tables do not belong together")
        log_probs = pc.list_flatten(table["log_probs"]).to_numpy()
        totals_R = np.add.reduceat(log_probs.astype(np.float64), np.cumsum(counts_R) - counts_R)
        if not (totals_R <= _ROUNDING).all():  # nor is it where one is not a number
            raise ValueError("it has a log-probability that is above 0 or not a number")
    shape = len(tokens_E), 1 + int(column_R.max(initial=1))
    passages_EK = np.full(shape, NO_PASSAGE, dtype=np.int64)
    totals_EK = np.full(shape, -np.inf)
    token_log_probs_EKT = np.zeros((*shape, tokens_E.max(initial=1)), dtype=np.float32)
    passages_EK[example_R, column_R] = table["passage"].fill_null(NO_PASSAGE).to_numpy()
    totals_EK[example_R, column_R] = totals_R
    row_N, place_N = np.nonzero(np.arange(token_log_probs_EKT.shape[2]) < counts_R[:, None])
    token_log_probs_EKT[example_R[row_N], column_R[row_N], place_N] = log_probs
    return Signals(
        path=path,
        manifest=manifest,
        documents_E=examples["document_id"].to_pylist(),
        tokens_E=tokens_E,
        passages_EK=passages_EK[:, 1:],
        log_probs_EK=totals_EK[:, 1:],
        baseline_E=totals_EK[:, 0],
        token_log_probs_EKT=token_log_probs_EKT,
    )


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
) -> Signals:
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
    check_output(out, kind=SIGNALS_KIND, force=force)
    index = index if isinstance(index, Index) else open_index(index)
    retriever = retriever or open_retriever(index)
    examples = OnlineExamples(sources, index, model, options, candidates, fields=fields, skip_bad=skip_bad)
    config = {"index": index.fingerprint, "retriever": config_of(retriever, "retriever"), **examples.config}
    with (
        unfinished_run(out, config, force=force) as work,
        unfinished_store(work, "parts") as parts,
        new_folder(out, kind=SIGNALS_KIND, force=force) as folder,
        pq.ParquetWriter(folder / EXAMPLES, EXAMPLE_SCHEMA, compression="zstd") as writer,
        progress_bar("Measuring", total=len(examples)) as advance,
        no_progress(),
    ):
        (folder / CANDIDATES).mkdir()
        for number, begin in enumerate(range(0, len(examples), _PART)):
            part_B = np.arange(begin, min(begin + _PART, len(examples)))
            writer.write_table(examples.table(part_B))
            key = str(number).encode()
            stored = parts.get([key])
            if not stored:
                stored[key] = _candidate_file(examples, part_B, retriever)
                parts.put(stored.items())
            (folder / CANDIDATES / f"{number:05}.parquet").write_bytes(stored[key])
            advance(len(part_B))
        writer.close()
        settings: dict[str, JsonValue] = {
            "config": {**config, INDEX_PATH: path_text(index.path.resolve())},
            "environment": environment(),
        }
        write_manifest(folder, kind=SIGNALS_KIND, settings=settings, counts={"examples": len(examples)})
    return open_signals(out)


def _candidate_file(examples: OnlineExamples, part_B: IntArray, retriever: Retriever) -> bytes:
    """Return the candidates of a part and the log-probabilities after them, as a file of `CANDIDATES`."""
    hits = examples.candidates(part_B, retriever, examples.reading.candidates)
    rows = []
    for row, after in enumerate(examples.log_probs(part_B, hits, alone=True)):
        for hit, log_probs in zip([(None, None), *hits.of(row)], after, strict=True):
            rows.append((part_B[row], *hit, log_probs))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([*zip(*rows, strict=True)], CANDIDATE_SCHEMA), sink, compression="zstd")
    return bytes(sink.getvalue())

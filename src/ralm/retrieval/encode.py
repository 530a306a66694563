"""Adds sets of vectors to an index, removes them, or changes the default set, while others read the index.

The manifest of the index is replaced in one step. A process that has the index open keeps the sets that it opened, and
a process that is killed leaves the index unchanged.
"""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final, Protocol

from pydantic import JsonValue

from ralm.corpus.store import PASSAGES_FILE
from ralm.errors import FolderExistsError, UsageError
from ralm.protocols import Encoder
from ralm.retrieval import layout, writer
from ralm.retrieval.dense.options import NOTHING_ENCODED, EncodingStats, VectorOptions, dense_extra
from ralm.retrieval.index import Index, open_index
from ralm.storage.atomic import storage_errors
from ralm.storage.manifest import Manifest, file_checksum, whole_checksum, write_changed_manifest
from ralm.storage.work import UNFINISHED_VECTORS, work_folder
from ralm.terminal import progress_bar

_NEW: Final = "new-vectors"


class RemoteEncoding(Protocol):
    """Encodes passages on other machines. It can be sent to another process."""

    def __call__(self, index: Index, encoder: Encoder, work: Path) -> EncodingStats:
        """Write the vectors of the passages of an index into a folder, as `ChunkEncoder` does for each `CHUNK` of them.
        The folder need not exist. Returns the numbers of passages that were encoded and not found there."""


def add_vectors(
    index: Path | str,
    encoder: Encoder,
    options: VectorOptions | None = None,
    *,
    name: str = layout.MAIN,
    default: bool = True,
    force: bool = False,
    ahead: RemoteEncoding | None = None,
) -> Manifest:
    """Encode the passages of an index and add the vectors to it as a set with this name; returns the new manifest.

    With `default` the set becomes the default; the first set always does. With `force` it replaces an existing set of
    this name in one step; an index that is open keeps the vectors that it was opened with. Encoded vectors are kept
    beside the index until the set is complete, so the same call resumes after an interruption. The fingerprints of BM25
    and of other sets do not change, so their caches and runs stay valid. `ahead` encodes passages on other machines
    first.

    Raises UsageError if the name is invalid, FolderExistsError if the index already has a set of that name and `force`
    is false or if another process is writing the index, and the errors of `open_index` and `DenseBuilder`.
    """
    layout.check_name(name)
    with dense_extra():
        from ralm.retrieval.dense.build import segment_file
    path = Path(index).resolve()
    opened = open_index(path)  # fails before anything is written beside a folder that is not an index
    with storage_errors(path), work_folder(UNFINISHED_VECTORS, path) as work, writer.changed_index(opened) as folder:
        check_can_add(opened, name, force=force)
        sets = opened.vector_sets
        ends = [*accumulate(segment.passages for segment in opened.segments)]
        record = write_vectors(opened, folder / _NEW, work, encoder, options, ahead, ends)
        files = [segment_file(number) for number in range(len(ends))]
        place = layout.vectors_folder(
            name, layout.joined_hash([whole_checksum(folder / _NEW / file) for file in files])
        )
        record["file"], *added_files = (f"{place}/{file}" for file in files)
        record["added_files"] = [*added_files]
        record["fingerprint"] = layout.set_fingerprint(
            layout.joined_hash(
                [opened.manifest.files[one.entry.file(PASSAGES_FILE)].checksum for one in opened.segments]
            ),
            layout.joined_hash([file_checksum(folder / _NEW / file) for file in files]),
        )
        (folder / place).parent.mkdir()
        (folder / _NEW).rename(folder / place)
        added = {**sets.sets, name: layout.VectorSet.model_validate(record)}
        return _write(opened, folder, layout.VectorSets(default=name if default else sets.default or name, sets=added))


def check_can_add(index: Index, name: str, *, force: bool) -> None:
    """Raise the errors of `add_vectors` that do not depend on encoding."""
    layout.check_name(name)
    if len(index.passages.numbering.removed):
        raise UsageError(
            f"passages were removed from {index.path}; merge its segments (`ralm merge {index.path}`) before vectors "
            "are added."
        )
    if name in index.vector_sets.sets and not force:
        raise FolderExistsError(
            f"{index.path} already has vectors {name!r}, which are kept; choose another name, or overwrite them with "
            "`force=True`."
        )


def remove_vectors(index: Path | str, name: str) -> Manifest:
    """Remove a set of vectors from an index; returns the new manifest. Without a set, the index is for BM25 only.

    Raises UsageError if the index has no such set, if it is the default and there are others, or if nothing would be
    left to search; FolderExistsError if another process is writing the index.
    """
    opened = open_index(Path(index).resolve())
    with writer.changed_index(opened) as folder:
        sets = opened.vector_sets
        sets.get(name, opened.path)
        kept = {other: one for other, one in sets.sets.items() if other != name}
        if kept and name == sets.default:
            raise UsageError(f"{name!r} are the default vectors of {opened.path}; make others the default first.")
        if not kept and opened.bm25_options is None:
            raise UsageError(f"{opened.path} has no BM25 and no other vectors: nothing would be left to search.")
        return _write(opened, folder, layout.VectorSets(default=sets.default if kept else None, sets=kept))


def set_default_vectors(index: Path | str, name: str) -> Manifest:
    """Make a set of vectors the default of an index; returns the new manifest.

    Raises UsageError if the index has no such set, FolderExistsError if another process is writing the index.
    """
    opened = open_index(Path(index).resolve())
    with writer.changed_index(opened) as folder:
        opened.vector_sets.get(name, opened.path)
        return _write(opened, folder, opened.vector_sets.model_copy(update={"default": name}))


def write_vectors(
    index: Index,
    folder: Path,
    work: Path,
    encoder: Encoder,
    options: VectorOptions | None,
    ahead: RemoteEncoding | None = None,
    ends: Sequence[int] = (),
) -> dict[str, JsonValue]:
    """Write the vectors of all passages into a new folder; returns the record of them for the manifest.

    `ends`: the ends of the segments, as for `DenseBuilder.finish`. `work` keeps encoded vectors, so the same call
    resumes after an interruption; the caller removes it. Raises the errors of `DenseBuilder`.
    """
    with dense_extra():
        from ralm.retrieval.dense.build import DenseBuilder
    folder.mkdir()
    before = NOTHING_ENCODED if ahead is None else ahead(index, encoder, work)
    with progress_bar("Encoding passages", len(index.passages)) as advance:
        builder = DenseBuilder(folder, work, encoder, options, advance=advance)
        for passage in index.passages:
            builder.add(passage)
        builder.encode_rest()
    return builder.finish(ends, before)


def _write(index: Index, folder: Path, sets: layout.VectorSets) -> Manifest:
    """Write the manifest of the index with these sets, without the files of removed ones."""
    before = index.manifest
    settings = {**before.settings, layout.VECTORS_SETTING: sets.model_dump(mode="json")}
    gone = index.vector_sets.files - sets.files
    return write_changed_manifest(folder, before, settings=settings, without=gone)

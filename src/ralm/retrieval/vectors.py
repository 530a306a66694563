"""Adds sets of vectors to an index, removes them, and says which is the default.

The index is replaced by one whose other files are links to the old ones.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from ralm.errors import FolderExistsError, UsageError
from ralm.protocols import Encoder
from ralm.retrieval import layout
from ralm.retrieval.build import check_vectors, encode_passages, new_version, weights_config, write_index_manifest
from ralm.retrieval.dense.options import VectorOptions, dense_extra
from ralm.retrieval.index import Index, open_index
from ralm.storage import atomic, manifest, work

if TYPE_CHECKING:
    from ralm.retrieval.dense.build import KnownVectors

_NAME: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)

RemoteEncoding: TypeAlias = Callable[[Index, Encoder, Path], int]
"""Writes vectors into a work folder as `SavedChunks` does for each `CHUNK`; returns how many passages were encoded."""


def add_vectors(
    index: Path | str,
    encoder: Encoder,
    options: VectorOptions | None = None,
    *,
    name: str = layout.MAIN,
    default: bool = True,
    force: bool = False,
    ahead: RemoteEncoding | None = None,
) -> manifest.Manifest:
    """Encode the passages of an index and add the vectors to it as a set; return the new manifest.

    An index that is open keeps the vectors that it was opened with. The fingerprints of BM25 and of other sets do not
    change, so their runs stay valid. Encoded vectors are kept beside the index until the set is complete, so the same
    call resumes after an interruption.

    Args:
        index: Folder of the index.
        encoder: Encoder of the passages. If it made the set that `force` replaces, its vectors are taken from there.
        options: How the vectors are stored.
        name: Name of the set.
        default: Make the set the default; the first set always is.
        force: Replace a set of this name.
        ahead: Encodes passages on other machines first.

    Raises:
        UsageError: If the name is invalid.
        FolderExistsError: If the index has a set of that name and `force` is false, or another process is writing the
            index. `open_index` and `encode_passages` raise others.
    """
    opened = open_index(Path(index).resolve())  # fails before anything is written beside a folder that is not an index
    check_can_add(opened, name, force=force)
    check_vectors(encoder, options)
    sets = opened.vector_sets
    with (
        atomic.storage_errors(opened.path),
        work.work_folder(work.unfinished(opened.path), opened.path) as saved,
        new_version(opened) as folder,
    ):
        before = ahead(opened, encoder, saved) if ahead else 0
        reusable = _reusable_vectors(opened, name, encoder, options or VectorOptions())
        place = folder / layout.vectors_folder(name)
        record = encode_passages(opened.passages, place, saved, encoder, options, reusable, before)
        chosen = name if default or sets.default is None else sets.default
        return _write(opened, folder, layout.VectorSets(default=chosen, sets={**sets.sets, name: record}), new=name)


def _reusable_vectors(index: Index, name: str, encoder: Encoder, options: VectorOptions) -> "KnownVectors":
    """Return the vectors with this name that the same encoder made and that need not be made again."""
    with dense_extra():
        from ralm.retrieval.dense.build import KnownVectors
    reusable = KnownVectors()
    if name in index.vectors and weights_config(index.vectors[name]) == weights_config(encoder.config):
        vectors = index.passage_vectors(name)
        if not vectors.is_rounded or index.vector_sets.sets[name].options.faiss == options.faiss:
            reusable.add(index.text_hashes(name), vectors.read)
    return reusable


def check_can_add(index: Index, name: str, *, force: bool) -> None:
    """Raise the errors of `add_vectors` that do not depend on encoding."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"vectors cannot be called {name!r}: a name is up to 64 letters, digits, '-', '_' and '.', and begins with "
            "a letter or digit."
        )
    if name in index.vectors and not force:
        raise FolderExistsError(
            f"{index.path} already has vectors {name!r}, which are kept; choose another name, or overwrite them with "
            "`force=True`."
        )


def remove_vectors(index: Path | str, name: str) -> manifest.Manifest:
    """Remove a set of vectors from an index, which without any is for BM25 only; return the new manifest.

    Raises:
        UsageError: If there is no such set, it is the default and there are others, or nothing would be left to search.
        FolderExistsError: If another process is writing the index.
    """
    opened = open_index(Path(index).resolve())
    sets = opened.vector_sets
    sets.get(name, opened.path)
    kept = {other: record for other, record in sets.sets.items() if other != name}
    if kept and name == sets.default:
        raise UsageError(f"{name!r} are the default vectors of {opened.path}; make others the default first.")
    if not kept and opened.bm25_options is None:
        raise UsageError(f"{opened.path} has no BM25 and no other vectors: nothing would be left to search.")
    with new_version(opened) as folder:
        return _write(opened, folder, layout.VectorSets(default=sets.default if kept else None, sets=kept))


def set_default_vectors(index: Path | str, name: str) -> manifest.Manifest:
    """Make a set of vectors the default of an index; return the new manifest.

    Raises:
        UsageError: If the index has no such set.
        FolderExistsError: If another process is writing the index.
    """
    opened = open_index(Path(index).resolve())
    opened.vector_sets.get(name, opened.path)
    with new_version(opened) as folder:
        return _write(opened, folder, opened.vector_sets.model_copy(update={"default": name}))


def _write(index: Index, folder: Path, sets: layout.VectorSets, *, new: str = "") -> manifest.Manifest:
    """Write the manifest of an index with these sets, of which `new` is in the folder, and link all other files."""
    gone = {layout.vectors_folder(name) for name in index.vectors if name == new or name not in sets.sets}
    entries = {name: entry for name, entry in index.manifest.files.items() if str(Path(name).parent) not in gone}
    for name in entries:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        atomic.link_file(index.path / name, folder / name)
    if new:
        entries |= manifest.file_entries(folder / layout.vectors_folder(new), folder)
    recorded = index.settings.model_copy(update={"vectors": sets})
    return write_index_manifest(folder, entries, index.manifest.counts, index.manifest.settings, recorded)

"""Changes an index: adds documents and removes them (`rebuild_index`), and adds sets of vectors.

With new vectors, the index is replaced by one whose other files are links to the old ones.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from ralm.errors import CorpusError, FolderExistsError, UsageError
from ralm.protocols import Encoder
from ralm.records import Passage
from ralm.retrieval import layout
from ralm.retrieval.bm25.formula import BuildOptions
from ralm.retrieval.build import (
    Stretch,
    check_vectors,
    encode_passages,
    new_version,
    rebuild_index,
    some_ids,
    weights_config,
    write_index_manifest,
)
from ralm.retrieval.dense.options import VectorOptions, dense_extra, load_encoder
from ralm.retrieval.index import Index, open_index
from ralm.storage import manifest, work
from ralm.validation import check_strings

if TYPE_CHECKING:
    from ralm.retrieval.dense.build import KnownVectors

_NAME: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)

RemoteEncoding: TypeAlias = Callable[[Index, Encoder, Path], int]
"""Writes vectors into a work folder as `SavedChunks` does for each `CHUNK`; returns how many passages were encoded."""


def update_index(
    index: Path | str,
    passages: Iterable[Passage] = (),
    *,
    remove: Collection[str] = (),
    replace: bool = False,
    encoders: Mapping[str, Encoder] | None = None,
    build: BuildOptions | None = None,
) -> manifest.Manifest:
    """Remove documents from an index, and add passages at its end; return the new manifest.

    The new index replaces the old one in one step, and equals one that is built at once of the passages that are left.
    A process that has the old one open keeps it. Approximate vectors are made of all vectors again. Encoded vectors are
    kept beside the index until it is replaced, so the same call resumes.

    Args:
        index: Folder of the index.
        passages: Passages to add, numbered from 0.
        remove: Ids of the documents to remove.
        replace: Remove the older document if an added one has its id; otherwise such an id is an error.
        encoders: Encoders of the added passages by the names of the sets of vectors; else those that the index names.
        build: Memory of BM25.

    Raises:
        UsageError: If there is nothing to do or nothing would be left.
        CorpusError: If an id in `remove` is not in the index or belongs to several documents, or if an added id occurs
            twice or is already in the index. `open_index` and `rebuild_index` raise others.
    """
    check_strings("remove", remove)
    opened = open_index(Path(index).resolve())
    by_name, remove = encoders or {}, [*remove]
    removed = documents_to_remove(opened, remove, [], replace=replace)  # fails before the passages are analysed

    def arrange(added: Sequence[str]) -> list[Stretch]:
        gone = documents_to_remove(opened, remove, added, replace=replace) if added else removed
        if not added and not gone:
            raise UsageError("there is nothing to update: give passages to add, or documents to remove.")
        return [*(numbers for document, numbers in opened.passages.documents() if document not in gone), *added]

    def encoder(name: str) -> Encoder:
        return by_name.get(name) or load_encoder(opened.encoder_options(name))

    return rebuild_index(opened, passages, arrange, encoder=encoder, build=build)


def documents_to_remove(
    index: Index, remove: Collection[str], added: Iterable[str], *, replace: bool = True
) -> dict[str, range]:
    """Return the numbers of the passages to remove by document id; raises CorpusError as `update_index` does."""
    added = [*added]
    ids = {*remove, *added}
    documents: dict[str, range] = {}
    several: list[str] = []
    for document, numbers in index.passages.documents() if ids else ():
        if document in ids:
            if document in documents:
                several.append(document)
            documents[document] = numbers
    missing = [document for document in dict.fromkeys(remove) if document not in documents]
    if missing:
        raise CorpusError(f"{some_ids(missing)} not in {index.path}; nothing was changed.")
    kept = documents.keys() - {*remove}
    clashing = [document for document in added if document in kept]
    if clashing and not replace:
        raise CorpusError(
            f"{some_ids(clashing)} already in {index.path}; nothing was changed. Replace such documents with "
            "`replace=True`, or give the new ones other ids."
        )
    if several:
        raise CorpusError(
            f"{some_ids([*dict.fromkeys(several)], 'id')} shared by several documents of {index.path}, so which to "
            "remove is unclear; nothing was changed. Build the index again with an id for each document."
        )
    return documents


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
        work.storage_errors(opened.path),
        work.work_folder(work.unfinished(opened.path), opened.path) as saved,
        new_version(opened) as folder,
    ):
        before = ahead(opened, encoder, saved) if ahead else 0
        reusable = _reusable_vectors(opened, name, encoder, options or VectorOptions())
        place = folder / layout.vectors_folder(name)
        record = encode_passages(opened.passages, place, saved, encoder, options, reusable, before)
        entries = {file: entry for file, entry in opened.manifest.files.items() if (folder / file).parent != place}
        for file in entries:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            work.link_file(opened.path / file, folder / file)
        entries |= manifest.file_entries(place, folder)
        chosen = name if default or sets.default is None else sets.default
        vectors = layout.VectorSets(default=chosen, sets={**sets.sets, name: record})
        recorded = opened.settings.model_copy(update={"vectors": vectors})
        return write_index_manifest(folder, entries, opened.manifest.counts, opened.manifest.settings, recorded)


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

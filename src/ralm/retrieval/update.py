"""Adds documents to an index and removes them: a build of what is kept and what is new (`rebuild_index`)."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from ralm.errors import CorpusError, UsageError
from ralm.protocols import Encoder
from ralm.records import Passage
from ralm.retrieval.bm25.formula import BuildOptions
from ralm.retrieval.build import Stretch, rebuild_index, some_ids
from ralm.retrieval.dense.options import load_encoder
from ralm.retrieval.index import Index, open_index
from ralm.storage.manifest import Manifest
from ralm.validation import check_strings


def update_index(
    index: Path | str,
    passages: Iterable[Passage] = (),
    *,
    remove: Collection[str] = (),
    replace: bool = False,
    encoders: Mapping[str, Encoder] | None = None,
    build: BuildOptions | None = None,
) -> Manifest:
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

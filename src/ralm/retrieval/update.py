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
    """Remove the documents with the ids in `remove` from an index, and add passages, numbered from 0, at its end.
    Returns the new manifest.

    The index that results replaces the old one in one step, and is the same as one that is built at once of the
    passages that are left; a process that has the old one open keeps it. Approximate vectors are made of all vectors
    again.

    Adding a document whose id the index already has is an error, unless `replace` is true: then the older one is
    removed. New passages are encoded for each set of vectors: by the encoder in `encoders` under the set's name,
    otherwise by the one that the index names. Encoded vectors are kept beside the index until it is replaced, so the
    same call resumes. `build`: the memory of BM25, and the number of processes that analyse.

    Raises UsageError if there is nothing to do or nothing would be left; CorpusError if an id in `remove` is not in the
    index or belongs to several documents, or if an added id occurs twice or is already in the index; and the errors of
    `open_index` and `rebuild_index`.
    """
    check_strings("remove", remove)
    opened = open_index(Path(index).resolve())
    given, remove = encoders or {}, [*remove]
    removed = documents_to_remove(opened, remove, [], replace=replace)  # fails before the passages are analysed

    def arrange(added: Sequence[str]) -> list[Stretch]:
        gone = documents_to_remove(opened, remove, added, replace=replace) if added else removed
        if not added and not gone:
            raise UsageError("there is nothing to update: give passages to add, or documents to remove.")
        return [*(numbers for document, numbers in opened.passages.documents() if document not in gone), *added]

    def encoder(name: str) -> Encoder:
        return given.get(name) or load_encoder(opened.encoder_options(name))

    return rebuild_index(opened, passages, arrange, encoder=encoder, build=build)


def documents_to_remove(
    index: Index, remove: Collection[str], added: Iterable[str], *, replace: bool = True
) -> dict[str, range]:
    """Return the documents with ids in `remove`, and with `replace` in `added`, and the numbers of their passages, by
    id. Raises CorpusError as `update_index` does."""
    added = [*added]
    wanted = {*remove, *added}
    documents: dict[str, range] = {}
    several: list[str] = []
    for document, numbers in index.passages.documents() if wanted else ():
        if document in wanted:
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

"""Finds the passages with certain titles or documents, so that a retriever's `without` can exclude them."""

from collections.abc import Iterable

import numpy as np

from ralm.corpus.decontamination import normal_title
from ralm.corpus.stored import StoredPassages
from ralm.records import IntArray


def passages_of(passages: StoredPassages, titles: Iterable[str] = (), document_ids: Iterable[str] = ()) -> IntArray:
    """The numbers (int64, rising) of the passages of documents with one of these titles or ids.

    Titles are compared after `normal_title`, ids exactly.
    """
    wanted_titles, wanted_ids = {normal_title(title) for title in titles} - {""}, set(document_ids)
    found = []
    for number, document_id, title in passages.origins():
        if document_id in wanted_ids or (wanted_titles and normal_title(title) in wanted_titles):
            found.append(number)
    return np.array(found, dtype=np.int64)

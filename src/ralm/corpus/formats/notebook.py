"""Reads Jupyter notebooks: the text of their cells in order, without what they print."""

import json
from collections.abc import Iterator
from typing import Any

from ralm.corpus import documents, files
from ralm.errors import CorpusError
from ralm.records import Document


def notebook_documents(file: files.File, builder: documents.DocumentBuilder) -> Iterator[Document]:
    """The notebook as a document, with code between fences; its title is its first heading or the file name.

    Raises CorpusError if the file is no notebook.
    """
    content = files.decode(files.content_of(file.path), str(file.path))
    try:
        notebook: Any = json.loads(content)
        cells = [(one["cell_type"], "".join(one["source"]).strip()) for one in notebook["cells"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CorpusError(f"{file.path} is not a Jupyter notebook of format 4, or damaged.") from None
    text = "\n\n".join(f"```\n{source}\n```" if kind == "code" else source for kind, source in cells if source)
    yield builder.markdown(file, "", text)

"""Query encoders that were trained for the vectors of a passage encoder: how their folders say so.

The folder is what sentence-transformers saves, with a manifest of ralm. The manifest names the weights that encoded the
passages, so such a query encoder is accepted for every index whose passages they encoded.
"""

from pathlib import Path
from typing import Final

from ralm.errors import FolderError
from ralm.folders.manifest import kind_of, read_manifest

KIND: Final = "encoder"
FORMAT_VERSION: Final = 1
TRAINED_FOR: Final = "trained_for"
"""The key, in the results that a manifest's settings hold, of the fingerprint of the weights that encoded the passages."""


def trained_for(name: str) -> str | None:
    """The fingerprint of the passage encoder that the query encoder in a folder was trained for; None if it was not
    trained for one, or is not a folder of ralm.

    Raises DamagedFolderError if the folder was altered since it was trained, NewerFormatError.
    """
    folder = Path(name)
    try:
        is_ours = kind_of(folder) == KIND
    except FolderError:
        return None
    if not is_ours:
        return None
    results = read_manifest(folder, kind=KIND, format_version=FORMAT_VERSION).settings.get("results")
    recorded = results.get(TRAINED_FOR) if isinstance(results, dict) else None
    return recorded if isinstance(recorded, str) else None

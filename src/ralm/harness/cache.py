"""Keeps the answers of one model and one way of retrieving apart from all others in a cache of the harness.

The harness finds an answer by the text of its request alone (`lm_eval.api.model.hash_args`). So answers of another
model or index, or of the harness's own `hf`, would be taken for ours if they were written to the same file.
"""

import hashlib
import json
from typing import Any

from pydantic import JsonValue

from ralm.errors import UsageError


def keep_apart(answers: Any, settings: dict[str, JsonValue]) -> None:
    """Let a cache (the harness's SqliteDict) find and keep only answers of these settings, from now on.

    Raises UsageError if the cache is of another kind.
    """
    if not hasattr(answers, "encode_key"):
        raise UsageError(
            "`use_cache`: this cache cannot keep the answers of several settings apart: pip install 'sqlitedict>=2', "
            "or leave it out."
        )
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    own = answers.encode_key
    answers.encode_key = lambda key: f"ralm {digest} {own(key)}"

"""ralm as a model of lm-evaluation-harness.

`ralm.harness.model` registers it there when it is imported. `python -m ralm.harness` is the harness's own program with
this model in it, for versions of the harness that do not look for models of other packages.
"""

from contextlib import AbstractContextManager

from ralm.errors import extra


def harness_extra() -> AbstractContextManager[None]:
    """Turn a missing package of the extra `harness` into MissingExtraError."""
    return extra("harness", "ralm as a model of lm-evaluation-harness needs", ("lm_eval", "torch", "transformers"))

"""ralm as a model of lm-evaluation-harness.

`ralm.harness.model` registers it there when it is imported. `python -m ralm.harness` is the harness's own program with
this model in it, for versions of the harness that do not look for models of other packages.
"""

from contextlib import AbstractContextManager

from ralm.errors import extra


def lm_eval_installed() -> AbstractContextManager[None]:
    """Raise MissingExtraError if lm_eval, which the block imports, is not installed."""
    return extra("harness", "ralm as a model of lm-evaluation-harness needs", ("lm_eval", "torch", "transformers"))

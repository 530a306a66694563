"""One cache for scoring and writing: a prompt that is continued and whose known answer is scored is read once.

Knows the protocols of models; knows nothing of how a model caches.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property

from ralm.protocols import Continuations, WritingModel
from ralm.records import FloatArray, ScoringSequence


class SharedCache:
    """What a model has read, for its scores and for the texts that it continues; made when it is first needed.

    Where the model's `Continuations` cannot score, or it reads a token by how many follow it (`merges_prefixes`), the
    model scores by itself, and nothing is shared.
    """

    def __init__(self, model: WritingModel) -> None:
        self._model = model

    @cached_property
    def continuations(self) -> Continuations:
        """The texts that the model is continuing."""
        return self._model.continuations()

    def score(self, passes: Sequence[ScoringSequence]) -> Iterable[FloatArray]:
        """As `LanguageModel.score`; what passes share with the texts of the previous call is not read again.

        All passes are held at once, so they should be as few as the texts that are continued together.
        """
        apart = not getattr(self._model, "merges_prefixes", True)
        score = self._model.score if apart else getattr(self.continuations, "score", self._model.score)
        found: Iterable[FloatArray] = score(passes)
        return found

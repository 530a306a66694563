"""How REPLUG reads a text: an ensemble over ten passages, found by Contriever, as it is or after LSR.

Language modeling follows the published code: rolling windows of 127 tokens of query and 769 predicted ones.
"""

from dataclasses import dataclass, replace
from typing import Final

from ralm.corpus.splitting import Splitting
from ralm.reading import ReadingOptions
from ralm.reading.ensemble import Ensemble
from ralm.reading.plan import PlanOptions
from ralm.recipes.measures import Per, Perplexity
from ralm.recipes.recipe import Scale
from ralm.recipes.resources import CONTRIEVER, GPT2, NEO, PILE_ALL_TRAIN, Resource
from ralm.recipes.steps import Step, evaluate, index, retrieve, train_retriever
from ralm.retrieval.dense.options import EncoderOptions
from ralm.retrieval.retriever import RetrieverOptions
from ralm.training.options import REPLUG, REPLUG_EXAMPLES, RetrieverTrainingOptions

DOCUMENTS: Final = 10
PLAN: Final = PlanOptions(
    semantics="official", windows="rolling", stride=769, query_tokens=127, document_tokens=128, max_length=1024
)
DENSE: Final = RetrieverOptions(retriever="dense")
ENCODING: Final = EncoderOptions(encoder="")
_PASSAGE_TOKENS: Final = 128
WINDOWS: Final = (
    "Windows are those of the published code (`--windows rolling`); the paper does not describe them. Similarities are "
    "Contriever's inner products, as in the code."
)
SUPERVISION: Final = (
    "GPT-3 Curie, which supervised the retriever, is no longer offered. GPT-J 6B, which is about as large, takes its "
    "place."
)


def pile_index() -> Step:
    """Passages of 128 tokens of the Pile's training data, exact search."""
    splitting = Splitting(tokens=_PASSAGE_TOKENS)
    return index(PILE_ALL_TRAIN, splitting=splitting, tokens_of=GPT2[0], encoder=CONTRIEVER, encoding=ENCODING)


def trained_retriever(scale: Scale) -> Step:
    """Contriever after LSR on sequences of the Pile (section 5.2): 25,000 steps, the index refreshed every 3,000."""
    return train_retriever(
        PILE_ALL_TRAIN,
        NEO[-1],
        pile_index(),
        both=scale.retriever(RetrieverTrainingOptions()),
        training=scale.training(replace(REPLUG, held_out=0)),
        examples=scale.examples(REPLUG_EXAMPLES),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """The readings of a text. `tokenizer` is the model whose tokens windows are counted in."""

    scale: Scale
    text: Resource
    tokenizer: Resource
    per: Per

    def plain(self, lm: Resource) -> Perplexity:
        """Without passages."""
        return Perplexity(evaluate(self.text, lm, self._plan, limit_tokens=self.scale.limit_tokens), self.per)

    def ensemble(
        self,
        lm: Resource,
        index: Step,
        *,
        documents: int = DOCUMENTS,
        most: int = DOCUMENTS,
        retrieval: RetrieverOptions = DENSE,
        vectors: Step | None = None,
    ) -> Perplexity:
        """With an ensemble over the first passages of an index; `most` are retrieved, once for all numbers of them.
        `vectors`: with those that the training of a retriever added to the index."""
        limit = self.scale.limit_tokens
        number, most = self.scale.documents(documents), self.scale.documents(max(most, documents))
        found = retrieve(
            self.text,
            self.tokenizer,
            index,
            self._plan,
            k=most,
            retrieval=retrieval,
            vectors=vectors,
            limit_tokens=limit,
        )
        reading = ReadingOptions(reader="ensemble", ensemble=Ensemble(documents=number))
        return Perplexity(
            evaluate(self.text, lm, self._plan, retrieved=found, reading=reading, limit_tokens=limit), self.per
        )

    @property
    def _plan(self) -> PlanOptions:
        return self.scale.plan(PLAN)

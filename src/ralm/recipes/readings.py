"""How both papers read a text: In-Context RALM (sections 5, 6) and REPLUG, whose ensemble averages ten passages.

The figures of In-Context RALM come from its published code, so its plans are `semantics="official"`. REPLUG's follow
its published code too: rolling windows of 127 tokens of query and 769 predicted ones.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from ralm.corpus.splitting import Splitting
from ralm.reading import ReadingOptions
from ralm.reading.ensemble import Ensemble
from ralm.reading.plan import PlanOptions
from ralm.recipes import steps
from ralm.recipes.measures import Measure, Per, perplexity_of
from ralm.recipes.recipe import Scale
from ralm.recipes.resources import (
    CONTRIEVER,
    GPT2,
    NEO,
    PILE_ALL_TRAIN,
    ROBERTA,
    WIKIPEDIA,
    WIKITEXT_DEV,
    WIKITEXT_TITLES,
    WIKITEXT_TRAIN,
    Resource,
)
from ralm.recipes.steps import Step
from ralm.reranking import RerankOptions
from ralm.retrieval.retriever import RetrieverOptions
from ralm.training.options import (
    REPLUG,
    REPLUG_EXAMPLES,
    CandidateOptions,
    ExampleOptions,
    RerankerOptions,
    RetrieverTrainingOptions,
    TrainingOptions,
)

ICR_PLAN: Final = PlanOptions(semantics="official")
ICR_CANDIDATES: Final = 16
ICR_SEMANTICS: Final = (
    "Windows, documents and normalisation are those of the published code (`--semantics official`), which made the "
    "paper's figures."
)
REPLUG_PLAN: Final = PlanOptions(
    semantics="official", windows="rolling", stride=769, query_tokens=127, document_tokens=128, max_length=1024
)
REPLUG_DOCUMENTS: Final = 10
REPLUG_WINDOWS: Final = (
    "Windows are those of the published code (`--windows rolling`); the paper does not describe them. Similarities are "
    "Contriever's inner products, as in the code."
)
REPLUG_SUPERVISION: Final = (
    "GPT-3 Curie, which supervised the retriever, is no longer offered. GPT-J 6B, which is about as large, takes its "
    "place."
)
BM25_SEARCH: Final = RetrieverOptions()
DENSE_SEARCH: Final = RetrieverOptions(retriever="dense")


def wikipedia() -> Step:
    """BM25 over Wikipedia, without the articles of WikiText-103's test and development sets (section 4.3)."""
    return steps.index_step(WIKIPEDIA, titles=WIKITEXT_TITLES)


def pile_index() -> Step:
    """Passages of 128 tokens of the Pile's training data, for exact search with Contriever."""
    return steps.index_step(PILE_ALL_TRAIN, splitting=Splitting(tokens=128), tokens_of=GPT2[0], encoder=CONTRIEVER)


def ensemble_of(documents: int) -> ReadingOptions:
    """An ensemble over so many passages."""
    return ReadingOptions(reader="ensemble", ensemble=Ensemble(documents=documents))


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """The readings of a text. Passages are retrieved once for all of them, from `index` unless another one is given.

    `tokenizer` is the model whose tokens strides are counted in: models with the same tokenizer share the passages.
    """

    scale: Scale
    text: Resource
    tokenizer: Resource
    per: Per = "word"
    index: Step | None = None
    plan: PlanOptions = ICR_PLAN

    def at(self, plan: PlanOptions) -> "Readings":
        """The same readings with another plan."""
        return replace(self, plan=plan)

    def plain(self, lm: Resource) -> Measure:
        """Without passages."""
        return self._measure(lm, None)

    def bm25(self, lm: Resource) -> Measure:
        """With the first passage."""
        return self._chosen(lm)

    def dense(self, lm: Resource, index: Step) -> Measure:
        """With the first passage of a dense retriever."""
        return self._measure(lm, self._retrieved(index, 1, DENSE_SEARCH))

    def zero_shot(self, lm: Resource, rerank_lm: Resource | None = None) -> Measure:
        """With the passage that a language model chooses by the last tokens of the prefix (section 6.1)."""
        return self._chosen(lm, RerankOptions(method="zero-shot"), rerank_lm=rerank_lm)

    def oracle(self, lm: Resource, candidates: int = ICR_CANDIDATES) -> Measure:
        """With the passage that makes the targets most likely."""
        return self._chosen(lm, RerankOptions(method="oracle", candidates=candidates))

    def predictive(self, lm: Resource) -> Measure:
        """With the passage that a trained reranker chooses (section 6.2)."""
        reranking = RerankOptions(method="predictive", cross_encoder="")
        return self._chosen(lm, reranking, reranker=predictive_reranker(self.scale))

    def ensemble(
        self,
        lm: Resource,
        index: Step,
        *,
        documents: int = REPLUG_DOCUMENTS,
        retrieved: int = REPLUG_DOCUMENTS,
        retrieval: RetrieverOptions = DENSE_SEARCH,
        vectors: Step | None = None,
    ) -> Measure:
        """With an ensemble over the first passages of an index, of those that are `retrieved`.

        `vectors`: with those that the training of a retriever added to the index.
        """
        found = self._retrieved(index, self.scale.documents(max(retrieved, documents)), retrieval, vectors)
        return self._measure(lm, found, ensemble_of(self.scale.documents(documents)))

    def _chosen(self, lm: Resource, reranking: RerankOptions | None = None, **by: Any) -> Measure:
        """With the best passage of BM25 by the retriever, or by a reranker."""
        assert self.index is not None
        reading = steps.FIRST_PASSAGE
        if reranking is not None:
            candidates = self.scale.candidates(reranking.candidates)
            reading = ReadingOptions(reranking=replace(reranking, candidates=candidates))
        found = self._retrieved(self.index, self.scale.candidates(ICR_CANDIDATES), BM25_SEARCH)
        return self._measure(lm, found, reading, **by)

    def _retrieved(self, index: Step, k: int, retrieval: RetrieverOptions, vectors: Step | None = None) -> Step:
        plan, limit = self.scale.plan(self.plan), self.scale.limit_tokens
        return steps.retrieve_step(
            self.text, self.tokenizer, index, plan, k=k, retrieval=retrieval, vectors=vectors, limit_tokens=limit
        )

    def _measure(
        self, lm: Resource, retrieved: Step | None, reading: ReadingOptions = steps.FIRST_PASSAGE, **by: Any
    ) -> Measure:
        plan, limit = self.scale.plan(self.plan), self.scale.limit_tokens
        return perplexity_of(
            steps.eval_step(self.text, lm, plan, retrieved=retrieved, reading=reading, limit_tokens=limit, **by),
            self.per,
        )


def on_wikitext_dev(scale: Scale) -> Readings:
    """WikiText-103's development set with passages of Wikipedia, as In-Context RALM reads it."""
    return Readings(scale=scale, text=WIKITEXT_DEV, index=wikipedia(), tokenizer=GPT2[0])


def predictive_reranker(scale: Scale) -> Step:
    """The reranker of In-Context RALM, section 6.2: RoBERTa-base, trained on the scores of GPT-2 S in 300,000 examples
    of WikiText-103's training set."""
    examples = scale.examples(ExampleOptions(examples=300_000))
    candidates = CandidateOptions(candidates=scale.candidates(ICR_CANDIDATES))
    signals = steps.signals_step(WIKITEXT_TRAIN, GPT2[0], wikipedia(), examples=examples, candidates=candidates)
    reading = scale.reranker(RerankerOptions(rank_prior=False, likelihood=False))
    return steps.train_reranker_step(
        signals, ROBERTA, training=scale.training(TrainingOptions(held_out=0)), reading=reading
    )


def trained_retriever(scale: Scale) -> Step:
    """Contriever after LSR on sequences of the Pile (REPLUG, section 5.2): 25,000 steps, the index refreshed every
    3,000."""
    return steps.train_retriever_step(
        PILE_ALL_TRAIN,
        NEO[-1],
        pile_index(),
        both=scale.retriever(RetrieverTrainingOptions()),
        training=scale.training(replace(REPLUG, held_out=0)),
        examples=scale.examples(REPLUG_EXAMPLES),
    )

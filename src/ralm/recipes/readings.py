"""How both papers read a text: In-Context RALM (sections 5, 6) and REPLUG, whose ensemble averages ten passages.

The figures of In-Context RALM come from its published code, so its plans are `semantics="official"`. REPLUG's follow
its published code too: rolling windows of 127 tokens of query and 769 predicted ones.
"""

from dataclasses import dataclass, replace
from typing import Final

from ralm.corpus.splitting import Splitting
from ralm.reading import ReadingOptions
from ralm.reading.ensemble import Ensemble
from ralm.reading.plan import PlanOptions
from ralm.recipes.measures import Per, Perplexity
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
from ralm.recipes.steps import (
    Step,
    eval_step,
    index_step,
    retrieve_step,
    signals_step,
    train_reranker_step,
    train_retriever_step,
)
from ralm.reranking import Method, RerankOptions
from ralm.retrieval.dense.options import EncoderOptions
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
CANDIDATES: Final = 16
SEMANTICS: Final = (
    "Windows, documents and normalisation are those of the published code (`--semantics official`), which made the "
    "paper's figures."
)


def wikipedia() -> Step:
    """BM25 over Wikipedia, without the articles of WikiText-103's test and development sets (section 4.3)."""
    return index_step(WIKIPEDIA, titles=WIKITEXT_TITLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class IcrReadings:
    """The readings of a text with the passages of an index. `tokenizer` is the model whose tokens strides are counted
    in; models with the same tokenizer share what is retrieved."""

    scale: Scale
    text: Resource
    index: Step
    tokenizer: Resource
    per: Per = "word"
    plan: PlanOptions = ICR_PLAN

    def at(self, plan: PlanOptions) -> "IcrReadings":
        """The same with another plan."""
        return replace(self, plan=plan)

    def plain(self, lm: Resource) -> Perplexity:
        """Without passages."""
        return self._perplexity(eval_step(self.text, lm, self._plan, limit_tokens=self.scale.limit_tokens))

    def bm25(self, lm: Resource) -> Perplexity:
        """With the first passage."""
        return self._with(lm, ReadingOptions())

    def zero_shot(self, lm: Resource, rerank_lm: Resource | None = None) -> Perplexity:
        """With the one that a language model chooses by the last tokens of the prefix (section 6.1)."""
        return self._with(lm, self._choosing("zero-shot"), rerank_lm=rerank_lm)

    def oracle(self, lm: Resource, candidates: int = CANDIDATES) -> Perplexity:
        """With the one that makes the targets likeliest."""
        return self._with(lm, self._choosing("oracle", candidates))

    def predictive(self, lm: Resource) -> Perplexity:
        """With the one that a trained reranker chooses (section 6.2)."""
        candidates = self.scale.candidates(CANDIDATES)
        return self._with(lm, ReadingOptions(), reranker=predictive_reranker(self.scale), candidates=candidates)

    @property
    def _plan(self) -> PlanOptions:
        return self.scale.plan(self.plan)

    def _choosing(self, method: Method, candidates: int = CANDIDATES) -> ReadingOptions:
        number = self.scale.candidates(candidates)
        return ReadingOptions(reranking=RerankOptions(method=method, candidates=number))

    def _with(
        self,
        lm: Resource,
        reading: ReadingOptions,
        *,
        reranker: Step | None = None,
        candidates: int = CANDIDATES,
        rerank_lm: Resource | None = None,
    ) -> Perplexity:
        limit = self.scale.limit_tokens
        found = retrieve_step(
            self.text, self.tokenizer, self.index, self._plan, k=self.scale.candidates(CANDIDATES), limit_tokens=limit
        )
        step = eval_step(
            self.text,
            lm,
            self._plan,
            retrieved=found,
            reading=reading,
            reranker=reranker,
            candidates=candidates,
            rerank_lm=rerank_lm,
            limit_tokens=limit,
        )
        return self._perplexity(step)

    def _perplexity(self, step: Step) -> Perplexity:
        return Perplexity(step, self.per)


def on_wikitext_dev(scale: Scale) -> IcrReadings:
    """The readings of WikiText-103's development set with passages of Wikipedia."""
    return IcrReadings(scale=scale, text=WIKITEXT_DEV, index=wikipedia(), tokenizer=GPT2[0])


def predictive_reranker(scale: Scale) -> Step:
    """The reranker of section 6.2: RoBERTa-base, trained on what GPT-2 S makes of 300,000 examples of WikiText-103's
    training set."""
    examples = scale.examples(ExampleOptions(examples=300_000))
    candidates = CandidateOptions(candidates=scale.candidates(CANDIDATES))
    measured = signals_step(WIKITEXT_TRAIN, GPT2[0], wikipedia(), examples=examples, candidates=candidates)
    reading = scale.reranker(RerankerOptions(rank_prior=False, likelihood=False))
    return train_reranker_step(measured, ROBERTA, training=scale.training(TrainingOptions(held_out=0)), reading=reading)


REPLUG_DOCUMENTS: Final = 10
REPLUG_PLAN: Final = PlanOptions(
    semantics="official", windows="rolling", stride=769, query_tokens=127, document_tokens=128, max_length=1024
)
REPLUG_DENSE: Final = RetrieverOptions(retriever="dense")
REPLUG_ENCODING: Final = EncoderOptions(encoder="")
_PASSAGE_TOKENS: Final = 128
REPLUG_WINDOWS: Final = (
    "Windows are those of the published code (`--windows rolling`); the paper does not describe them. Similarities are "
    "Contriever's inner products, as in the code."
)
REPLUG_SUPERVISION: Final = (
    "GPT-3 Curie, which supervised the retriever, is no longer offered. GPT-J 6B, which is about as large, takes its "
    "place."
)


def pile_index() -> Step:
    """Passages of 128 tokens of the Pile's training data, exact search."""
    splitting = Splitting(tokens=_PASSAGE_TOKENS)
    return index_step(
        PILE_ALL_TRAIN, splitting=splitting, tokens_of=GPT2[0], encoder=CONTRIEVER, encoding=REPLUG_ENCODING
    )


def trained_retriever(scale: Scale) -> Step:
    """Contriever after LSR on sequences of the Pile (section 5.2): 25,000 steps, the index refreshed every 3,000."""
    return train_retriever_step(
        PILE_ALL_TRAIN,
        NEO[-1],
        pile_index(),
        both=scale.retriever(RetrieverTrainingOptions()),
        training=scale.training(replace(REPLUG, held_out=0)),
        examples=scale.examples(REPLUG_EXAMPLES),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplugReadings:
    """The readings of a text. `tokenizer` is the model whose tokens windows are counted in."""

    scale: Scale
    text: Resource
    tokenizer: Resource
    per: Per

    def plain(self, lm: Resource) -> Perplexity:
        """Without passages."""
        return Perplexity(eval_step(self.text, lm, self._plan, limit_tokens=self.scale.limit_tokens), self.per)

    def ensemble(
        self,
        lm: Resource,
        index: Step,
        *,
        documents: int = REPLUG_DOCUMENTS,
        most: int = REPLUG_DOCUMENTS,
        retrieval: RetrieverOptions = REPLUG_DENSE,
        vectors: Step | None = None,
    ) -> Perplexity:
        """With an ensemble over the first passages of an index; `most` are retrieved, once for all numbers of them.
        `vectors`: with those that the training of a retriever added to the index."""
        limit = self.scale.limit_tokens
        number, most = self.scale.documents(documents), self.scale.documents(max(most, documents))
        found = retrieve_step(
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
            eval_step(self.text, lm, self._plan, retrieved=found, reading=reading, limit_tokens=limit), self.per
        )

    @property
    def _plan(self) -> PlanOptions:
        return self.scale.plan(REPLUG_PLAN)

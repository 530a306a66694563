"""How both papers read a text: In-Context RALM (sections 5, 6) and REPLUG, whose ensemble averages ten passages.

The figures of In-Context RALM come from its published code, so its plans are `semantics="official"`. REPLUG's follow
its published code too: rolling windows of 127 tokens of query and 769 predicted ones.
"""

from dataclasses import dataclass, replace
from typing import Final

from ralm.corpus.splitting import Splitting
from ralm.reading import ReadingOptions
from ralm.reading.plan import PlanOptions
from ralm.recipes import measures, recipe, resources, steps
from ralm.retrieval.retriever import RetrieverOptions
from ralm.training import options

ICR_PLAN: Final = PlanOptions(semantics="official")
ICR_SEMANTICS: Final = (
    "Windows, documents and normalisation are those of the published code (`--semantics official`), which made the "
    "paper's figures."
)
REPLUG_PLAN: Final = PlanOptions(
    semantics="official", windows="rolling", stride=769, query_tokens=127, document_tokens=128, max_length=1024
)
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


def wikipedia() -> steps.Step:
    """BM25 over Wikipedia, without the articles of WikiText-103's test and development sets (section 4.3)."""
    return steps.index_step(resources.WIKIPEDIA, titles=resources.WIKITEXT_TITLES)


def pile_index() -> steps.Step:
    """Passages of 128 tokens of the Pile's training data, for exact search with Contriever."""
    return steps.index_step(
        resources.PILE_ALL_TRAIN,
        splitting=Splitting(tokens=128),
        tokens_of=resources.GPT2[0],
        encoder=resources.CONTRIEVER,
    )


def ensemble_of(documents: int) -> ReadingOptions:
    """An ensemble over so many passages."""
    return ReadingOptions(reader="ensemble", documents=documents)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReadings:
    """The readings of a text. Passages are retrieved once for all of them, from `index` unless another one is given.

    `tokenizer` is the model whose tokens strides are counted in: models with the same tokenizer share the passages.
    """

    scale: recipe.Scale
    text: resources.Resource
    tokenizer: resources.Resource
    per: measures.Per = "word"
    index: steps.Step | None = None
    plan: PlanOptions = ICR_PLAN

    def at(self, plan: PlanOptions) -> "TextReadings":
        """The same readings with another plan."""
        return replace(self, plan=plan)

    def plain(self, lm: resources.Resource) -> measures.Measure:
        """Without passages."""
        return self._measure(lm, None)

    def bm25(self, lm: resources.Resource) -> measures.Measure:
        """With the first passage."""
        return self._chosen(lm)

    def dense(self, lm: resources.Resource, index: steps.Step) -> measures.Measure:
        """With the first passage of a dense retriever."""
        return self._measure(lm, self._retrieved(index, 1, DENSE_SEARCH))

    def zero_shot(
        self, lm: resources.Resource, rerank_lm: resources.Resource | None = None, *, tokens: int | None = None
    ) -> measures.Measure:
        """With the passage that a language model chooses by the last `tokens` of the prefix (section 6.1)."""
        last = (f"tokens={tokens}" if tokens else "", "lm=" if rerank_lm else "")
        return self._chosen(lm, "zero-shot", keys=last, ranker=rerank_lm)

    def oracle(self, lm: resources.Resource, candidates: int = recipe.ICR_CANDIDATES) -> measures.Measure:
        """With the passage that makes the targets most likely."""
        return self._chosen(lm, "oracle", candidates)

    def predictive(self, lm: resources.Resource) -> measures.Measure:
        """With the passage that a trained reranker chooses (section 6.2)."""
        return self._chosen(lm, "predictive", keys=("cross_encoder=",), ranker=predictive_reranker(self.scale))

    def ensemble(
        self,
        lm: resources.Resource,
        index: steps.Step,
        *,
        documents: int = recipe.REPLUG_DOCUMENTS,
        retrieved: int = recipe.REPLUG_DOCUMENTS,
        retrieval: RetrieverOptions = DENSE_SEARCH,
        vectors: steps.Step | None = None,
    ) -> measures.Measure:
        """With an ensemble over the first passages of an index, of those that are `retrieved`.

        `vectors`: with those that the training of a retriever added to the index.
        """
        found = self._retrieved(index, self.scale.documents(max(retrieved, documents)), retrieval, vectors)
        return self._measure(lm, found, ensemble_of(self.scale.documents(documents)))

    def _chosen(
        self,
        lm: resources.Resource,
        method: str | None = None,
        candidates: int = recipe.ICR_CANDIDATES,
        *,
        keys: tuple[str, ...] = (),
        ranker: steps.Step | resources.Resource | None = None,
    ) -> measures.Measure:
        """With the best passage of BM25 by the retriever, or by a reranker with these keys."""
        assert self.index is not None
        reading = steps.FIRST_PASSAGE
        if method is not None:
            written = (f"candidates={self.scale.candidates(candidates)}", *filter(None, keys))
            reading = ReadingOptions(rerank=f"{method}:{','.join(written)}")
        found = self._retrieved(self.index, self.scale.candidates(recipe.ICR_CANDIDATES), BM25_SEARCH)
        return self._measure(lm, found, reading, ranker)

    def _retrieved(
        self, index: steps.Step, k: int, retrieval: RetrieverOptions, vectors: steps.Step | None = None
    ) -> steps.Step:
        plan, limit = self.scale.plan(self.plan), self.scale.limit_tokens
        return steps.retrieve_step(
            self.text, self.tokenizer, index, plan, k=k, retrieval=retrieval, vectors=vectors, limit_tokens=limit
        )

    def _measure(
        self,
        lm: resources.Resource,
        retrieved: steps.Step | None,
        reading: ReadingOptions = steps.FIRST_PASSAGE,
        ranker: steps.Step | resources.Resource | None = None,
    ) -> measures.Measure:
        plan, limit = self.scale.plan(self.plan), self.scale.limit_tokens
        return measures.perplexity_of(
            steps.eval_step(
                self.text, lm, plan, retrieved=retrieved, reading=reading, ranker=ranker, limit_tokens=limit
            ),
            self.per,
        )


def on_wikitext_dev(scale: recipe.Scale) -> TextReadings:
    """WikiText-103's development set with passages of Wikipedia, as In-Context RALM reads it."""
    return TextReadings(scale=scale, text=resources.WIKITEXT_DEV, index=wikipedia(), tokenizer=resources.GPT2[0])


def predictive_reranker(scale: recipe.Scale) -> steps.Step:
    """The reranker of In-Context RALM, section 6.2: RoBERTa-base, trained on the scores of GPT-2 S in 300,000 examples
    of WikiText-103's training set."""
    examples = scale.examples(options.ExampleOptions(examples=300_000))
    candidates = options.CandidateOptions(candidates=scale.candidates(recipe.ICR_CANDIDATES))
    signals = steps.signals_step(
        resources.WIKITEXT_TRAIN, resources.GPT2[0], wikipedia(), examples=examples, candidates=candidates
    )
    reading = scale.reranker(options.RerankerOptions(rank_prior=False, likelihood=False))
    return steps.train_reranker_step(
        signals, resources.ROBERTA, training=scale.training(options.TrainingOptions(held_out=0)), reading=reading
    )


def trained_retriever(scale: recipe.Scale) -> steps.Step:
    """Contriever after LSR on sequences of the Pile (REPLUG, section 5.2): 25,000 steps, the index refreshed every
    3,000."""
    return steps.train_retriever_step(
        resources.PILE_ALL_TRAIN,
        resources.NEO[-1],
        pile_index(),
        both=scale.retriever(options.RetrieverTrainingOptions()),
        training=scale.training(replace(options.REPLUG, held_out=0)),
        examples=scale.examples(options.REPLUG_EXAMPLES),
    )

"""How In-Context RALM reads a text: without passages, with BM25's first, and with one that was chosen (sections 5, 6).

The paper's figures come from its published code, so plans are `semantics="official"`. Passages are retrieved once for
all readings of a text.
"""

from dataclasses import dataclass, replace
from typing import Final

from ralm.reading import ReadingOptions
from ralm.reading.plan import PlanOptions
from ralm.recipes.measures import Per, Perplexity
from ralm.recipes.recipe import Scale
from ralm.recipes.resources import GPT2, ROBERTA, WIKIPEDIA, WIKITEXT_TITLES, WIKITEXT_TRAIN, Resource
from ralm.recipes.steps import Step, evaluate, index, retrieve, signals, train_reranker
from ralm.reranking import Method, RerankOptions
from ralm.training.options import CandidateOptions, ExampleOptions, RerankerOptions, TrainingOptions

PLAN: Final = PlanOptions(semantics="official")
CANDIDATES: Final = 16
SEMANTICS: Final = (
    "Windows, documents and normalisation are those of the published code (`--semantics official`), which made the "
    "paper's figures."
)


def wikipedia() -> Step:
    """BM25 over Wikipedia, without the articles of WikiText-103's test and development sets (section 4.3)."""
    return index(WIKIPEDIA, titles=WIKITEXT_TITLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """The readings of a text with the passages of an index. `tokenizer` is the model whose tokens strides are counted
    in; models with the same tokenizer share what is retrieved."""

    scale: Scale
    text: Resource
    index: Step
    tokenizer: Resource
    per: Per = "word"
    plan: PlanOptions = PLAN

    def at(self, plan: PlanOptions) -> "Readings":
        """The same with another plan."""
        return replace(self, plan=plan)

    def plain(self, lm: Resource) -> Perplexity:
        """Without passages."""
        return self._perplexity(evaluate(self.text, lm, self._plan, limit_tokens=self.scale.limit_tokens))

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
        found = retrieve(
            self.text, self.tokenizer, self.index, self._plan, k=self.scale.candidates(CANDIDATES), limit_tokens=limit
        )
        step = evaluate(
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


def predictive_reranker(scale: Scale) -> Step:
    """The reranker of section 6.2: RoBERTa-base, trained on what GPT-2 S makes of 300,000 examples of WikiText-103's
    training set."""
    examples = scale.examples(ExampleOptions(examples=300_000))
    candidates = CandidateOptions(candidates=scale.candidates(CANDIDATES))
    measured = signals(WIKITEXT_TRAIN, GPT2[0], wikipedia(), examples=examples, candidates=candidates)
    reading = scale.reranker(RerankerOptions(rank_prior=False, likelihood=False))
    return train_reranker(measured, ROBERTA, training=scale.training(TrainingOptions(held_out=0)), reading=reading)

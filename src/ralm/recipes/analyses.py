"""Analyses of our own: the papers against their published code, and the oracle by the number of candidates."""

import itertools
from typing import Final

from ralm.answering.options import AnswerOptions, ChoiceOptions, Scoring
from ralm.reading import ReadingOptions
from ralm.reading.concatenation import Concatenation
from ralm.reading.plan import PlanOptions
from ralm.recipes.measures import AnswerScore, ChoiceAccuracy, Measure, Perplexity, PerplexityBySpaces
from ralm.recipes.readings import (
    DENSE_SEARCH,
    REPLUG_DOCUMENTS,
    REPLUG_PLAN,
    Readings,
    ensemble_of,
    on_wikitext_dev,
    wikipedia,
)
from ralm.recipes.recipe import Cell, Figure, Order, Recipe, Scale, cells_of
from ralm.recipes.resources import (
    CONTRIEVER,
    GPT2,
    LLAMA,
    MMLU,
    MMLU_DEV,
    NQ,
    NQ_TRAIN,
    WIKIPEDIA,
    WIKITEXT_TEST,
    WIKITEXT_TRAIN,
)
from ralm.recipes.steps import choice_step, index_step, qa_step
from ralm.retrieval.dense.options import EncoderOptions

_PAPER: Final = PlanOptions(semantics="paper")
_TWO: Final = ReadingOptions(reader="concatenation", concatenation=Concatenation(documents=2))
_CHOOSING: Final[tuple[tuple[Scoring, str | None], ...]] = (("letter", None), ("generated", "replug-choice-code"))
_CANDIDATES: Final = (1, 2, 4, 8, 16)
_FEW: Final = (1, 2, 6)

_Pairs = dict[str, tuple[Measure, ...]]
"""The figures of the paper's text and of its code, by the difference between them."""


def paper_or_code(scale: Scale) -> Recipe:
    """A row for the paper's text and one for the code, a column for each difference."""
    models = {"GPT-2 S": _of_texts(scale), "LLaMA-13B": _of_questions(scale)}
    cells = [
        Cell(model=model, how=how, column=f"{column}, {measure.label}", measure=measure)
        for model, pairs in models.items()
        for column, pair in pairs.items()
        for how, measure in zip(("paper", "code"), pair, strict=True)
    ]
    return Recipe(
        name="analysis/paper-or-code",
        paper="Analysis: the papers against their published code",
        about="What each difference between the text of the papers and their published code changes, all else equal.",
        cells=tuple(cells),
    )


def _of_texts(scale: Scale) -> _Pairs:
    """In the code of In-Context RALM, the document overwrites the oldest tokens, the first window is read without a
    document, and words are counted by their spaces. In the code of REPLUG, weights are inner products, not cosines."""
    code = Readings(scale=scale, text=WIKITEXT_TEST, index=wikipedia(), tokenizer=GPT2[0], per="token")
    paper = code.at(_PAPER)
    plain = paper.plain(GPT2[0]).step
    replug = Readings(scale=scale, text=WIKITEXT_TEST, tokenizer=GPT2[0], plan=REPLUG_PLAN)
    encodings = (EncoderOptions(encoder="", normalize=True), EncoderOptions(encoder=""))
    return {
        "Windows, without retrieval": (paper.plain(GPT2[0]), code.plain(GPT2[0])),
        "Words": (Perplexity(plain, "word"), PerplexityBySpaces(plain)),
        "Windows, BM25": (paper.bm25(GPT2[0]), code.bm25(GPT2[0])),
        "Windows, zero-shot reranking": (paper.zero_shot(GPT2[0]), code.zero_shot(GPT2[0])),
        "Similarity: cosine or inner product": tuple(
            replug.ensemble(GPT2[0], index_step(WIKITEXT_TRAIN, encoder=CONTRIEVER, encoding=one)) for one in encodings
        ),
    }


def _of_questions(scale: Scale) -> _Pairs:
    """The codes cut prompts of questions otherwise, and let each passage of an ensemble write an answer."""
    lm, index = LLAMA[1], index_step(WIKIPEDIA, encoder=CONTRIEVER)
    ensemble = ensemble_of(scale.documents(REPLUG_DOCUMENTS))
    cut = [
        qa_step(
            NQ,
            lm,
            index=index,
            retrieval=DENSE_SEARCH,
            reading=_TWO,
            prompt="in-context-ralm",
            semantics=semantics,
            limit=scale.limit,
        )
        for semantics in ("paper", "official")
    ]
    joined = [
        qa_step(
            NQ,
            lm,
            index=index,
            retrieval=DENSE_SEARCH,
            reading=ensemble,
            demonstrations=NQ_TRAIN,
            shots=scale.shots(16),
            prompt="replug",
            answering=AnswerOptions(join=join),
            limit=scale.limit,
        )
        for join in ("tokens", "answers")
    ]
    chosen = [
        choice_step(
            MMLU,
            lm,
            demonstrations=MMLU_DEV,
            shots=scale.shots(5),
            index=index,
            retrieval=DENSE_SEARCH,
            reading=ensemble,
            choosing=ChoiceOptions(score=score),
            prompt=prompt,
            limit=scale.limit_each(4),
        )
        for score, prompt in _CHOOSING
    ]
    return {
        "In-Context RALM's questions": tuple(map(AnswerScore, cut)),
        "REPLUG's answers: tokens or answers are averaged": tuple(map(AnswerScore, joined)),
        "MMLU: most likely letter or generated one": tuple(map(ChoiceAccuracy, chosen)),
    }


def oracle_by_candidates(scale: Scale) -> Recipe:
    """What choosing could gain, by the number of candidates."""
    readings, numbers = on_wikitext_dev(scale), _FEW if scale.small else _CANDIDATES
    column = "WikiText-103 dev, word perplexity"
    oracle = {number: readings.oracle(GPT2[0], number) for number in numbers}
    cells = cells_of("GPT-2 S", column, {"none": readings.plain(GPT2[0])})
    for number, measure in oracle.items():
        cells += cells_of("GPT-2 S", column, {"oracle": measure}, at=number)
    return Recipe(
        name="analysis/oracle-by-candidates",
        paper="Analysis: oracle by the number of candidates",
        about="How much better the best passage is than the first, by how many of BM25's passages it is chosen from.",
        cells=tuple(cells),
        orders=tuple(
            Order(better=oracle[more], worse=oracle[less], text=f"best of {more} < best of {less}")
            for less, more in itertools.pairwise(numbers)
        ),
        figure=Figure(kind="lines", over="candidates", logarithmic=True),
    )

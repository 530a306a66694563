"""Analyses of our own: the papers against their published code, and the oracle by the number of candidates."""

import itertools
from dataclasses import replace
from typing import Final

from ralm.answering.options import AnswerOptions, ChoiceOptions, Scoring
from ralm.reading import ReadingOptions
from ralm.reading.concatenation import Concatenation
from ralm.reading.ensemble import Ensemble
from ralm.reading.plan import PlanOptions
from ralm.recipes.measures import AnswerScore, ChoiceAccuracy, Measure, Perplexity, PerplexityBySpaces
from ralm.recipes.readings import (
    REPLUG_DENSE,
    REPLUG_DOCUMENTS,
    REPLUG_ENCODING,
    IcrReadings,
    ReplugReadings,
    on_wikitext_dev,
    wikipedia,
)
from ralm.recipes.recipe import Cell, Figure, Order, Recipe, Scale
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

_PAPER: Final = PlanOptions(semantics="paper")
_TWO: Final = ReadingOptions(reader="concatenation", concatenation=Concatenation(documents=2))
_CHOOSING: Final[tuple[tuple[Scoring, str | None], ...]] = (("letter", None), ("generated", "replug-choice-code"))


def paper_or_code(scale: Scale) -> Recipe:
    """The table: a row for the paper's text and one for the code, a column for each difference."""
    found = {
        **_in_context(scale),
        **_similarities(scale),
        **_answers(scale),
    }
    cells = [
        Cell(model=model, how=how, column=f"{column}, {measure.said}", measure=measure)
        for column, (model, pair) in found.items()
        for how, measure in zip(("paper", "code"), pair, strict=True)
    ]
    return Recipe(
        name="analysis/paper-or-code",
        paper="Analysis: the papers against their published code",
        about="What each difference between the text of the papers and their published code changes, all else equal.",
        cells=tuple(cells),
    )


def _in_context(scale: Scale) -> dict[str, tuple[str, tuple[Measure, Measure]]]:
    """Windows: in the code the document overwrites the oldest tokens, and the first window is read without one. Words:
    the code counts spaces."""
    code = IcrReadings(scale=scale, text=WIKITEXT_TEST, index=wikipedia(), tokenizer=GPT2[0], per="token")
    paper = code.at(_PAPER)
    plain = paper.plain(GPT2[0]).step
    return {
        "Windows, without retrieval": ("GPT-2 S", (paper.plain(GPT2[0]), code.plain(GPT2[0]))),
        "Words": ("GPT-2 S", (Perplexity(plain, "word"), PerplexityBySpaces(plain))),
        "Windows, BM25": ("GPT-2 S", (paper.bm25(GPT2[0]), code.bm25(GPT2[0]))),
        "Windows, zero-shot reranking": ("GPT-2 S", (paper.zero_shot(GPT2[0]), code.zero_shot(GPT2[0]))),
    }


def _similarities(scale: Scale) -> dict[str, tuple[str, tuple[Measure, Measure]]]:
    """REPLUG's weights: cosines in the paper, inner products in the code."""
    readings = ReplugReadings(scale=scale, text=WIKITEXT_TEST, tokenizer=GPT2[0], per="word")
    encodings = (replace(REPLUG_ENCODING, normalize=True), REPLUG_ENCODING)
    cosine, product = (
        readings.ensemble(GPT2[0], index_step(WIKITEXT_TRAIN, encoder=CONTRIEVER, encoding=one)) for one in encodings
    )
    return {"Similarity: cosine or inner product": ("GPT-2 S", (cosine, product))}


def _answers(scale: Scale) -> dict[str, tuple[str, tuple[Measure, Measure]]]:
    """Questions: what is cut, and how an ensemble answers."""
    lm, shots = LLAMA[1], scale.shots(16)
    own = index_step(WIKIPEDIA, encoder=CONTRIEVER, encoding=REPLUG_ENCODING)
    ensemble = ReadingOptions(reader="ensemble", ensemble=Ensemble(documents=scale.documents(REPLUG_DOCUMENTS)))
    two = [
        qa_step(
            NQ,
            lm,
            index=own,
            retrieval=REPLUG_DENSE,
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
            index=own,
            retrieval=REPLUG_DENSE,
            reading=ensemble,
            demonstrations=NQ_TRAIN,
            shots=shots,
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
            index=own,
            retrieval=REPLUG_DENSE,
            reading=ensemble,
            choosing=ChoiceOptions(score=score),
            prompt=prompt,
            limit=scale.limit_each(4),
        )
        for score, prompt in _CHOOSING
    ]
    return {
        "In-Context RALM's questions": ("LLaMA-13B", (AnswerScore(two[0]), AnswerScore(two[1]))),
        "REPLUG's answers: tokens or answers are averaged": (
            "LLaMA-13B",
            (AnswerScore(joined[0]), AnswerScore(joined[1])),
        ),
        "MMLU: likeliest letter or generated one": (
            "LLaMA-13B",
            (ChoiceAccuracy(chosen[0]), ChoiceAccuracy(chosen[1])),
        ),
    }


_CANDIDATES: Final = (1, 2, 4, 8, 16)


_FEW: Final = (1, 2, 6)


def oracle_by_candidates(scale: Scale) -> Recipe:
    """What choosing could gain, by the number of candidates."""
    readings, numbers = on_wikitext_dev(scale), _FEW if scale.small else _CANDIDATES
    column = "WikiText-103 dev, word perplexity"
    oracle: dict[int, Perplexity] = {number: readings.oracle(GPT2[0], number) for number in numbers}
    cells = [Cell(model="GPT-2 S", how="none", column=column, measure=readings.plain(GPT2[0]))]
    cells += [
        Cell(model="GPT-2 S", how="oracle", column=column, measure=one, at=number) for number, one in oracle.items()
    ]
    return Recipe(
        name="analysis/oracle-by-candidates",
        paper="Analysis: oracle by the number of candidates",
        about="How much better the best passage is than the first, by how many of BM25's passages it is chosen from.",
        cells=tuple(cells),
        orders=tuple(
            Order(better=oracle[more], worse=oracle[less], said=f"best of {more} < best of {less}")
            for less, more in itertools.pairwise(numbers)
        ),
        figure=Figure(kind="lines", over="candidates", logarithmic=True),
    )

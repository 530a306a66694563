"""Where the papers and their published code differ: what each difference changes."""

from dataclasses import replace
from typing import Final

from ralm.answering.options import AnswerOptions, ChoiceOptions, Scoring
from ralm.reading import ReadingOptions
from ralm.reading.concatenation import Concatenation
from ralm.reading.ensemble import Ensemble
from ralm.reading.plan import PlanOptions
from ralm.recipes.in_context_ralm import readings as in_context
from ralm.recipes.measures import Answered, Chosen, Measure, Perplexity, PerSpace
from ralm.recipes.recipe import Cell, Recipe, Scale
from ralm.recipes.replug import readings as replug
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
from ralm.recipes.steps import ask, choose, index

_PAPER: Final = PlanOptions(semantics="paper")
_TWO: Final = ReadingOptions(reader="concatenation", concatenation=Concatenation(documents=2))
_CHOOSING: Final[tuple[tuple[Scoring, str | None], ...]] = (("letter", None), ("generated", "replug-choice-code"))


def recipe(scale: Scale) -> Recipe:
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
    code = in_context.Readings(
        scale=scale, text=WIKITEXT_TEST, index=in_context.wikipedia(), tokenizer=GPT2[0], per="token"
    )
    paper = code.at(_PAPER)
    plain = paper.plain(GPT2[0]).step
    return {
        "Windows, without retrieval": ("GPT-2 S", (paper.plain(GPT2[0]), code.plain(GPT2[0]))),
        "Words": ("GPT-2 S", (Perplexity(plain, "word"), PerSpace(plain))),
        "Windows, BM25": ("GPT-2 S", (paper.bm25(GPT2[0]), code.bm25(GPT2[0]))),
        "Windows, zero-shot reranking": ("GPT-2 S", (paper.zero_shot(GPT2[0]), code.zero_shot(GPT2[0]))),
    }


def _similarities(scale: Scale) -> dict[str, tuple[str, tuple[Measure, Measure]]]:
    """REPLUG's weights: cosines in the paper, inner products in the code."""
    readings = replug.Readings(scale=scale, text=WIKITEXT_TEST, tokenizer=GPT2[0], per="word")
    encodings = (replace(replug.ENCODING, normalize=True), replug.ENCODING)
    cosine, product = (
        readings.ensemble(GPT2[0], index(WIKITEXT_TRAIN, encoder=CONTRIEVER, encoding=one)) for one in encodings
    )
    return {"Similarity: cosine or inner product": ("GPT-2 S", (cosine, product))}


def _answers(scale: Scale) -> dict[str, tuple[str, tuple[Measure, Measure]]]:
    """Questions: what is cut, and how an ensemble answers."""
    lm, shots = LLAMA[1], scale.shots(16)
    own = index(WIKIPEDIA, encoder=CONTRIEVER, encoding=replug.ENCODING)
    ensemble = ReadingOptions(reader="ensemble", ensemble=Ensemble(documents=scale.documents(replug.DOCUMENTS)))
    two = [
        ask(
            NQ,
            lm,
            index=own,
            retrieval=replug.DENSE,
            reading=_TWO,
            prompt="in-context-ralm",
            semantics=semantics,
            limit=scale.limit,
        )
        for semantics in ("paper", "official")
    ]
    joined = [
        ask(
            NQ,
            lm,
            index=own,
            retrieval=replug.DENSE,
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
        choose(
            MMLU,
            lm,
            demonstrations=MMLU_DEV,
            shots=scale.shots(5),
            index=own,
            retrieval=replug.DENSE,
            reading=ensemble,
            choosing=ChoiceOptions(score=score),
            prompt=prompt,
            limit=scale.limit_each(4),
        )
        for score, prompt in _CHOOSING
    ]
    return {
        "In-Context RALM's questions": ("LLaMA-13B", (Answered(two[0]), Answered(two[1]))),
        "REPLUG's answers: tokens or answers are averaged": ("LLaMA-13B", (Answered(joined[0]), Answered(joined[1]))),
        "MMLU: likeliest letter or generated one": ("LLaMA-13B", (Chosen(chosen[0]), Chosen(chosen[1]))),
    }

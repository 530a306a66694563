"""The analyses as recipes: which tokens gain, how much of the gain is near-duplicates, the oracle by candidates."""

import itertools
from typing import Final

from ralm.recipes.analyses.gains import CLASSES, GainBelowOverlap, GainByFrequency, GainOfClass
from ralm.recipes.in_context_ralm import readings as in_context
from ralm.recipes.measures import Perplexity
from ralm.recipes.recipe import Cell, Figure, Order, Recipe, Scale
from ralm.recipes.replug import readings as replug
from ralm.recipes.resources import CONTRIEVER, GPT2, WIKITEXT_DEV, WIKITEXT_TEST, WIKITEXT_TRAIN
from ralm.recipes.steps import Step, index

_BOUNDS: Final = (0, 10, 100, 1_000, 10_000, None)
"""Frequencies of words, in a million passages."""
_OVERLAPS: Final = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_CANDIDATES: Final = (1, 2, 4, 8, 16)
_FEW: Final = (1, 2, 6)
_GPT2_S: Final = "GPT-2 S"


def figure_7(scale: Scale) -> Recipe:
    """REPLUG's question of which tokens gain, asked of all tokens."""
    readings = replug.Readings(scale=scale, text=WIKITEXT_TEST, tokenizer=GPT2[0], per="word")
    own = index(WIKITEXT_TRAIN, encoder=CONTRIEVER, encoding=replug.ENCODING)
    lm = GPT2[-1]
    with_, without = readings.ensemble(lm, own).step, readings.plain(lm).step
    return Recipe(
        name="replug/figure-7",
        paper="REPLUG, Figure 7",
        about="Which tokens gain from passages: by class, and by how many passages of the corpus have the word. The "
        "paper shows one example, in which rare entities gain most; this asks it of every token.",
        cells=_gains("GPT-2 XL", with_, without, index(WIKITEXT_TRAIN)),
        figure=Figure(kind="bars", over="tokens"),
        differs=(replug.WINDOWS, "The figure shows one example; this is a table of all tokens."),
    )


def gain_by_token(scale: Scale) -> Recipe:
    """The same for BM25's first passage every four tokens."""
    readings = _readings(scale)
    with_, without = readings.bm25(GPT2[0]).step, readings.plain(GPT2[0]).step
    return Recipe(
        name="analysis/gain-by-token",
        paper="Analysis: which tokens gain",
        about="Which tokens gain from BM25's first passage: by class, and by how many passages of the corpus have the "
        "word.",
        cells=_gains(_GPT2_S, with_, without, in_context.wikipedia()),
        figure=Figure(kind="bars", over="tokens"),
    )


def _gains(model: str, with_: Step, without: Step, counted: Step) -> tuple[Cell, ...]:
    column = "gain, nats a token"
    classes = [Cell(model=model, how=one, column=column, measure=GainOfClass(with_, without, one)) for one in CLASSES]
    bounds = itertools.pairwise(_BOUNDS)
    return (
        *classes,
        *(
            Cell(
                model=model,
                how=_between(least or 0, most),
                column=column,
                measure=GainByFrequency(with_, without, counted, least or 0, most),
            )
            for least, most in bounds
        ),
    )


def _between(least: float, most: float | None) -> str:
    of = "of a million passages have the word"
    return f"{least:,} or more {of}" if most is None else f"{least:,} to {most:,} {of}"


def contamination(scale: Scale) -> Recipe:
    """How much of the gain is near-duplicates of the text."""
    readings = _readings(scale)
    with_, without = readings.bm25(GPT2[0]).step, readings.plain(GPT2[0]).step
    gain, kept = "lower token perplexity, %", "targets that keep their passage, %"
    cells = [
        Cell(
            model=_GPT2_S,
            how="BM25",
            column=kept if share else gain,
            measure=GainBelowOverlap(with_, without, most, share),
            at=100 * most,
        )
        for share in (False, True)
        for most in _OVERLAPS
    ]
    return Recipe(
        name="analysis/contamination",
        paper="Analysis: contamination curve",
        about="How much of the gain from passages is near-duplicates of the evaluated text. Passages that overlap it "
        "more than a threshold are taken out, and their targets count as read without passages. The overlap is the "
        "share of a passage's runs of eight words that stand in the text.",
        cells=tuple(cells),
        orders=(
            Order(
                better=GainBelowOverlap(with_, without, 1.0),
                worse=GainBelowOverlap(with_, without, 0.0),
                said="all passages gain more than those without any shared run of eight words",
            ),
        ),
        figure=Figure(kind="lines", over="greatest overlap of a passage, %"),
    )


def oracle_by_candidates(scale: Scale) -> Recipe:
    """What choosing could gain, by the number of candidates."""
    readings, numbers = _readings(scale), _FEW if scale.small else _CANDIDATES
    column = "WikiText-103 dev, word perplexity"
    oracle: dict[int, Perplexity] = {number: readings.oracle(GPT2[0], number) for number in numbers}
    cells = [Cell(model=_GPT2_S, how="none", column=column, measure=readings.plain(GPT2[0]))]
    cells += [
        Cell(model=_GPT2_S, how="oracle", column=column, measure=one, at=number) for number, one in oracle.items()
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


def _readings(scale: Scale) -> in_context.Readings:
    return in_context.Readings(scale=scale, text=WIKITEXT_DEV, index=in_context.wikipedia(), tokenizer=GPT2[0])

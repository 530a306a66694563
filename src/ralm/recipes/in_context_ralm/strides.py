"""Figure 5 and Figure 7: how often to retrieve, and how much the best of 16 passages would gain."""

import itertools
from dataclasses import replace
from typing import Final

from ralm.recipes.in_context_ralm.readings import PLAN, SEMANTICS, Readings, wikipedia
from ralm.recipes.recipe import Cell, Figure, Order, Recipe, Scale, cells_of, orders_of
from ralm.recipes.resources import GPT2, GPT2_NAMES, WIKITEXT_DEV

_STRIDES: Final = (1, 2, 4, 8, 16, 32, 64)
_FEW_STRIDES: Final = (4, 16, 64)
_COLUMN: Final = "WikiText-103 dev, word perplexity"


def _readings(scale: Scale) -> Readings:
    return Readings(scale=scale, text=WIKITEXT_DEV, index=wikipedia(), tokenizer=GPT2[0])


def figure_5(scale: Scale) -> Recipe:
    """BM25 by the number of tokens between retrievals."""
    readings, strides = _readings(scale), _FEW_STRIDES if scale.small else _STRIDES
    measured = {stride: readings.at(replace(PLAN, stride=stride)).bm25(GPT2[0]) for stride in strides}
    none = Cell(model="GPT-2 S", how="none", column=_COLUMN, measure=readings.plain(GPT2[0]))
    cells = [
        Cell(model="GPT-2 S", how="BM25", column=_COLUMN, measure=one, at=stride) for stride, one in measured.items()
    ]
    pairs = itertools.pairwise(strides)
    return Recipe(
        name="in-context-ralm/figure-5",
        paper="In-Context RALM, Figure 5",
        about="GPT-2 S on WikiText-103's development set with BM25's first passage, by the stride: the number of "
        "tokens between retrievals. The paper shows a plot without figures.",
        cells=(none, *cells),
        orders=tuple(
            Order(better=measured[less], worse=measured[more], said=f"stride {less} < {more}") for less, more in pairs
        ),
        figure=Figure(kind="lines", over="stride", logarithmic=True),
        differs=(SEMANTICS,),
    )


def figure_7(scale: Scale) -> Recipe:
    """The oracle: the best of BM25's first 16."""
    readings = _readings(scale)
    cells, orders = list[Cell](), list[Order]()
    for name, lm in zip(GPT2_NAMES, GPT2, strict=True):
        measured = {
            "none": readings.plain(lm),
            "BM25": readings.bm25(lm),
            "zero-shot": readings.zero_shot(lm),
            "oracle": readings.oracle(lm),
        }
        cells += cells_of(name, _COLUMN, measured)
        orders += orders_of(name, measured, (("BM25", "none"), ("zero-shot", "BM25"), ("oracle", "zero-shot")))
    return Recipe(
        name="in-context-ralm/figure-7",
        paper="In-Context RALM, Figure 7",
        about="What choosing among BM25's first 16 passages could gain: the oracle takes the one that makes the "
        "targets likeliest. The paper shows a plot without figures.",
        cells=tuple(cells),
        orders=tuple(orders),
        figure=Figure(kind="bars", over="reading"),
        differs=(SEMANTICS,),
    )

"""REPLUG, Figures 5, 6 and 8: retrievers and families of models on WikiText-103."""

from collections.abc import Sequence
from typing import Final

from ralm.recipes.readings import (
    BM25_SEARCH,
    DENSE_SEARCH,
    NO_FIGURES,
    REPLUG_PLAN,
    REPLUG_SUPERVISION,
    REPLUG_WINDOWS,
    Readings,
    trained_retriever,
)
from ralm.recipes.recipe import Cell, Figure, Order, Recipe, Scale, cells_of, orders_of
from ralm.recipes.resources import (
    BERT,
    BLOOM,
    CONTRIEVER,
    DPR,
    DPR_QUESTIONS,
    GPT2,
    OPT,
    WIKITEXT_TEST,
    WIKITEXT_TRAIN,
    Resource,
)
from ralm.recipes.steps import Step, index_step

_COLUMN: Final = "WikiText-103, word perplexity"


def replug_figure_5(scale: Scale) -> Recipe:
    """Five retrievers with GPT-2 L and XL."""
    return _retrievers(
        scale,
        "5",
        "GPT-2 L and XL on WikiText-103 with an ensemble over ten passages of five retrievers.",
        GPT2[2:],
        ("BERT", "DPR", "Contriever", "BM25", "Contriever LSR"),
    )


def replug_figure_6(scale: Scale) -> Recipe:
    """GPT-2, OPT and BLOOM by size."""
    cells, orders = list[Cell](), list[Order]()
    index = index_step(WIKITEXT_TRAIN, encoder=CONTRIEVER)
    for family, models in (("GPT-2", GPT2), ("OPT", OPT), ("BLOOM", BLOOM)):
        readings = _readings(scale, models[0])
        for lm in models:
            measured = {"none": readings.plain(lm), "REPLUG": readings.ensemble(lm, index)}
            cells += cells_of(lm.name, _COLUMN, measured, at=lm.parameters / 1e9, line=family)
            orders += orders_of(lm.name, measured, ("REPLUG", "none"))
    return Recipe(
        name="replug/figure-6",
        paper="REPLUG, Figure 6",
        about=f"GPT-2, OPT and BLOOM on WikiText-103 by their size, without retrieval and with REPLUG. {NO_FIGURES}",
        cells=tuple(cells),
        orders=tuple(orders),
        figure=Figure(kind="lines", over="parameters, billions", logarithmic=True),
        differs=(REPLUG_WINDOWS,),
    )


def replug_figure_8(scale: Scale) -> Recipe:
    """Dense against sparse retrieval, with all sizes of GPT-2."""
    return _retrievers(
        scale,
        "8",
        "GPT-2 on WikiText-103 without retrieval, with Contriever, Contriever LSR and BM25.",
        GPT2,
        ("Contriever", "BM25", "Contriever LSR"),
    )


def _retrievers(scale: Scale, number: str, about: str, models: Sequence[Resource], hows: Sequence[str]) -> Recipe:
    """A cell for each model and retriever, and the orders among retrievers that the paper reports."""
    cells, orders = list[Cell](), list[Order]()
    readings, indexes = _readings(scale, GPT2[0]), _indexes(scale)
    for lm in models:
        ensembles = {
            how: readings.ensemble(lm, indexes[how], retrieval=BM25_SEARCH if how == "BM25" else DENSE_SEARCH)
            for how in hows
        }
        measured = {"none": readings.plain(lm), **ensembles}
        cells += cells_of(lm.label, _COLUMN, measured)
        pairs = (("Contriever", "none"), ("BM25", "Contriever"), ("Contriever LSR", "BM25"))
        orders += orders_of(lm.label, measured, *pairs)
    return Recipe(
        name=f"replug/figure-{number}",
        paper=f"REPLUG, Figure {number}",
        about=f"{about} {NO_FIGURES}",
        cells=tuple(cells),
        orders=tuple(orders),
        figure=Figure(kind="bars", over="retriever"),
        differs=(REPLUG_WINDOWS, REPLUG_SUPERVISION),
    )


def _indexes(scale: Scale) -> dict[str, Step]:
    return {
        "BERT": index_step(WIKITEXT_TRAIN, encoder=BERT),
        "DPR": index_step(WIKITEXT_TRAIN, encoder=DPR, query_encoder=DPR_QUESTIONS),
        "Contriever": index_step(WIKITEXT_TRAIN, encoder=CONTRIEVER),
        "BM25": index_step(WIKITEXT_TRAIN),
        "Contriever LSR": index_step(WIKITEXT_TRAIN, encoder=trained_retriever(scale)),
    }


def _readings(scale: Scale, tokenizer: Resource) -> Readings:
    return Readings(scale=scale, text=WIKITEXT_TEST, tokenizer=tokenizer, plan=REPLUG_PLAN)

"""REPLUG, Figures 5, 6 and 8: retrievers and families of models on WikiText-103."""

from collections.abc import Sequence
from typing import Final

from ralm.recipes.measures import Perplexity
from ralm.recipes.readings import (
    REPLUG_DENSE,
    REPLUG_ENCODING,
    REPLUG_SUPERVISION,
    REPLUG_WINDOWS,
    ReplugReadings,
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
    GPT2_NAMES,
    OPT,
    WIKITEXT_TEST,
    WIKITEXT_TRAIN,
    Resource,
)
from ralm.recipes.steps import Step, index_step
from ralm.retrieval.retriever import RetrieverOptions

_COLUMN: Final = "WikiText-103, word perplexity"
_BM25: Final = RetrieverOptions()
_NO_FIGURES: Final = "The paper shows a plot without figures."


def _dense(encoder: Resource | Step, questions: Resource | None = None) -> tuple[Step, RetrieverOptions]:
    return index_step(WIKITEXT_TRAIN, encoder=encoder, query_encoder=questions, encoding=REPLUG_ENCODING), REPLUG_DENSE


def _retrievers(scale: Scale) -> dict[str, tuple[Step, RetrieverOptions]]:
    return {
        "BERT": _dense(BERT),
        "DPR": _dense(DPR, DPR_QUESTIONS),
        "Contriever": _dense(CONTRIEVER),
        "BM25": (index_step(WIKITEXT_TRAIN), _BM25),
        "Contriever LSR": _dense(trained_retriever(scale)),
    }


def _readings(scale: Scale, tokenizer: Resource) -> ReplugReadings:
    return ReplugReadings(scale=scale, text=WIKITEXT_TEST, tokenizer=tokenizer, per="word")


def _compared(
    scale: Scale, names: Sequence[str], models: Sequence[Resource], hows: Sequence[str]
) -> tuple[tuple[Cell, ...], tuple[Order, ...]]:
    """A cell for each model and retriever, and the orders among retrievers that the paper reports."""
    cells, orders = list[Cell](), list[Order]()
    readings, retrievers = _readings(scale, GPT2[0]), _retrievers(scale)
    for name, lm in zip(names, models, strict=True):
        measured: dict[str, Perplexity] = {"none": readings.plain(lm)}
        for how in hows:
            own, retrieval = retrievers[how]
            measured[how] = readings.ensemble(lm, own, retrieval=retrieval)
        cells += cells_of(name, _COLUMN, measured)
        pairs = (("Contriever", "none"), ("BM25", "Contriever"), ("Contriever LSR", "BM25"))
        orders += orders_of(name, measured, pairs)
    return tuple(cells), tuple(orders)


def replug_figure_5(scale: Scale) -> Recipe:
    """Five retrievers with GPT-2 L and XL."""
    cells, orders = _compared(scale, GPT2_NAMES[2:], GPT2[2:], ("BERT", "DPR", "Contriever", "BM25", "Contriever LSR"))
    return Recipe(
        name="replug/figure-5",
        paper="REPLUG, Figure 5",
        about=f"GPT-2 L and XL on WikiText-103 with an ensemble over ten passages of five retrievers. {_NO_FIGURES}",
        cells=cells,
        orders=orders,
        figure=Figure(kind="bars", over="retriever"),
        differs=(REPLUG_WINDOWS, REPLUG_SUPERVISION),
    )


def replug_figure_8(scale: Scale) -> Recipe:
    """Dense against sparse, with all sizes of GPT-2."""
    cells, orders = _compared(scale, GPT2_NAMES, GPT2, ("Contriever", "BM25", "Contriever LSR"))
    return Recipe(
        name="replug/figure-8",
        paper="REPLUG, Figure 8",
        about=f"GPT-2 on WikiText-103 without retrieval, with Contriever, Contriever LSR and BM25. {_NO_FIGURES}",
        cells=cells,
        orders=orders,
        figure=Figure(kind="bars", over="retriever"),
        differs=(REPLUG_WINDOWS, REPLUG_SUPERVISION),
    )


def replug_figure_6(scale: Scale) -> Recipe:
    """GPT-2, OPT and BLOOM by size."""
    cells, orders = list[Cell](), list[Order]()
    own, retrieval = _dense(CONTRIEVER)
    for family, models in (("GPT-2", GPT2), ("OPT", OPT), ("BLOOM", BLOOM)):
        readings = _readings(scale, models[0])
        for lm in models:
            none, ensemble = readings.plain(lm), readings.ensemble(lm, own, retrieval=retrieval)
            cells += [
                Cell(model=lm.name, how=how, column=_COLUMN, measure=one, at=lm.parameters / 1e9, line=family)
                for how, one in (("none", none), ("REPLUG", ensemble))
            ]
            orders.append(Order(better=ensemble, worse=none, said=f"{lm.name}: REPLUG < none"))
    return Recipe(
        name="replug/figure-6",
        paper="REPLUG, Figure 6",
        about=f"GPT-2, OPT and BLOOM on WikiText-103 by their size, without retrieval and with REPLUG. {_NO_FIGURES}",
        cells=tuple(cells),
        orders=tuple(orders),
        figure=Figure(kind="lines", over="parameters, billions", logarithmic=True),
        differs=(REPLUG_WINDOWS,),
    )

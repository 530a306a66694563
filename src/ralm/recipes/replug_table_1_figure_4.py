"""REPLUG, Table 1 and Figure 4: bits per byte on the Pile, before and after LSR, and by the number of documents."""

from typing import Final

from ralm.recipes.measures import Measure
from ralm.recipes.readings import (
    DENSE_SEARCH,
    REPLUG_PLAN,
    REPLUG_SUPERVISION,
    REPLUG_WINDOWS,
    Readings,
    pile_index,
    trained_retriever,
)
from ralm.recipes.recipe import Cell, Figure, Order, Recipe, Scale, cells_of, discontinued, orders_of
from ralm.recipes.resources import GPT2, NEO, PILE_ALL_TEST
from ralm.retrieval.retriever import RetrieverOptions

_COLUMN: Final = "The Pile, bits per byte"
_HOWS: Final = ("none", "REPLUG", "REPLUG LSR")
_TABLE_1: Final = {
    "GPT-2 S": (1.33, 1.26, 1.21),
    "GPT-2 M": (1.20, 1.14, 1.11),
    "GPT-2 L": (1.19, 1.15, 1.09),
    "GPT-2 XL": (1.16, 1.09, 1.07),
}
_GPT3: Final = {
    "GPT-3 Ada": (1.05, 0.98, 0.96),
    "GPT-3 Babbage": (0.95, 0.90, 0.88),
    "GPT-3 Curie": (0.88, 0.85, 0.82),
    "GPT-3 Davinci": (0.80, 0.77, 0.75),
}
_NUMBERS: Final = (1, 2, 4, 6, 8, 10)
_FEW: Final = (1, 2, 4)
_RANDOM: Final = RetrieverOptions(retriever="random")
_CORPUS: Final = (
    "The Pile's own copies are no longer public; this is the Pile without the parts under copyright, and the beginning "
    "of its test data. Passages of a training text's own document are left out as candidates; the paper samples "
    "passages and training texts from different documents."
)


def replug_table_1(scale: Scale) -> Recipe:
    """GPT-2 without passages, with REPLUG and with REPLUG LSR."""
    readings = Readings(scale=scale, text=PILE_ALL_TEST, tokenizer=GPT2[0], per="byte", plan=REPLUG_PLAN)
    cells, orders = list[Cell](), list[Order]()
    for lm in GPT2:
        measured = {
            "none": readings.plain(lm),
            "REPLUG": readings.ensemble(lm, pile_index()),
            "REPLUG LSR": readings.ensemble(lm, pile_index(), vectors=trained_retriever(scale)),
        }
        cells += cells_of(lm.label, _COLUMN, measured, _TABLE_1[lm.label])
        orders += orders_of(lm.label, measured, ("REPLUG", "none"), ("REPLUG LSR", "REPLUG"))
    for model, published in _GPT3.items():
        cells += discontinued(model, _COLUMN, dict(zip(_HOWS, published, strict=True)))
    return Recipe(
        name="replug/table-1",
        paper="REPLUG, Table 1",
        about="Bits per byte of the Pile: without retrieval, with an ensemble over Contriever's first ten passages, "
        "and with Contriever trained by LSR.",
        cells=tuple(cells),
        orders=tuple(orders),
        differs=(REPLUG_WINDOWS, REPLUG_SUPERVISION, _CORPUS),
    )


def replug_figure_4(scale: Scale) -> Recipe:
    """Bits per byte by the number of documents: REPLUG, LSR and random passages."""
    lm, numbers = NEO[-1], _FEW if scale.small else _NUMBERS
    readings = Readings(scale=scale, text=PILE_ALL_TEST, tokenizer=lm, per="byte", plan=REPLUG_PLAN)
    few, most = numbers[0], numbers[-1]
    retrieval = {"random": _RANDOM, "REPLUG": DENSE_SEARCH, "REPLUG LSR": DENSE_SEARCH}
    lines: dict[str, dict[int, Measure]] = {
        how: {
            number: readings.ensemble(
                lm,
                pile_index(),
                documents=number,
                retrieved=most,
                retrieval=retrieval[how],
                vectors=trained_retriever(scale) if how == "REPLUG LSR" else None,
            )
            for number in numbers
        }
        for how in retrieval
    }
    none = readings.plain(lm)
    cells = cells_of(lm.label, _COLUMN, {"none": none})
    for how, line in lines.items():
        for number, measure in line.items():
            cells += cells_of(lm.label, _COLUMN, {how: measure}, at=number)
    own = lines["REPLUG"]
    return Recipe(
        name="replug/figure-4",
        paper="REPLUG, Figure 4",
        about="Bits per byte of the Pile by the number of documents in the ensemble. Random documents are the control: "
        "the gain is not that of averaging. The paper shows a plot of GPT-3 Curie without figures.",
        cells=tuple(cells),
        orders=(
            Order(better=own[most], worse=none, text=f"{most} documents < none"),
            Order(better=none, worse=lines["random"][most], text=f"none < {most} random documents"),
            Order(better=own[most], worse=own[few], text=f"{most} documents < {few}"),
        ),
        figure=Figure(kind="lines", over="documents"),
        differs=(
            REPLUG_WINDOWS,
            REPLUG_SUPERVISION,
            _CORPUS,
            "GPT-3 Curie is no longer offered; GPT-J 6B reads in its place.",
        ),
    )

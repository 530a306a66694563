"""REPLUG, Table 1 and Figure 4: bits per byte on the Pile, before and after LSR, and by the number of documents."""

from typing import Final

from ralm.recipes.readings import (
    REPLUG_SUPERVISION,
    REPLUG_WINDOWS,
    ReplugReadings,
    pile_index,
    trained_retriever,
)
from ralm.recipes.recipe import Cell, Figure, Order, Recipe, Scale
from ralm.recipes.resources import GPT2, NEO, PILE_ALL_TEST
from ralm.retrieval.retriever import RetrieverOptions

_COLUMN: Final = "The Pile, bits per byte"
_HOWS: Final = ("none", "REPLUG", "REPLUG LSR")
_PUBLISHED: Final = {
    "GPT-2 S": (1.33, 1.26, 1.21),
    "GPT-2 M": (1.20, 1.14, 1.11),
    "GPT-2 L": (1.19, 1.15, 1.09),
    "GPT-2 XL": (1.16, 1.09, 1.07),
}
_GONE: Final = {
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
    readings = ReplugReadings(scale=scale, text=PILE_ALL_TEST, tokenizer=GPT2[0], per="byte")
    cells, orders = list[Cell](), list[Order]()
    for (name, published), lm in zip(_PUBLISHED.items(), GPT2, strict=True):
        measured = (
            readings.plain(lm),
            readings.ensemble(lm, pile_index()),
            readings.ensemble(lm, pile_index(), vectors=trained_retriever(scale)),
        )
        cells += [
            Cell(model=name, how=how, column=_COLUMN, measure=one, published=value)
            for how, one, value in zip(_HOWS, measured, published, strict=True)
        ]
        orders += [
            Order(better=measured[1], worse=measured[0], said=f"{name}: REPLUG < none"),
            Order(better=measured[2], worse=measured[1], said=f"{name}: REPLUG LSR < REPLUG"),
        ]
    for name, published in _GONE.items():
        cells += [
            Cell(model=name, how=how, column=_COLUMN, measure=None, published=value, why_not="no longer offered")
            for how, value in zip(_HOWS, published, strict=True)
        ]
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
    readings = ReplugReadings(scale=scale, text=PILE_ALL_TEST, tokenizer=lm, per="byte")
    tuned, most = trained_retriever(scale), numbers[-1]
    lines = {
        "random": {
            one: readings.ensemble(lm, pile_index(), documents=one, most=most, retrieval=_RANDOM) for one in numbers
        },
        "REPLUG": {one: readings.ensemble(lm, pile_index(), documents=one, most=most) for one in numbers},
        "REPLUG LSR": {
            one: readings.ensemble(lm, pile_index(), documents=one, most=most, vectors=tuned) for one in numbers
        },
    }
    none = readings.plain(lm)
    cells = [Cell(model="GPT-J 6B", how="none", column=_COLUMN, measure=none)]
    cells += [
        Cell(model="GPT-J 6B", how=how, column=_COLUMN, measure=measure, at=number)
        for how, line in lines.items()
        for number, measure in line.items()
    ]
    return Recipe(
        name="replug/figure-4",
        paper="REPLUG, Figure 4",
        about="Bits per byte of the Pile by the number of documents in the ensemble. Random documents are the control: "
        "the gain is not that of averaging. The paper shows a plot of GPT-3 Curie without figures.",
        cells=tuple(cells),
        orders=(
            Order(better=lines["REPLUG"][most], worse=none, said=f"{most} documents < none"),
            Order(better=none, worse=lines["random"][most], said=f"none < {most} random documents"),
            Order(
                better=lines["REPLUG"][most], worse=lines["REPLUG"][numbers[0]], said=f"{most} documents < {numbers[0]}"
            ),
        ),
        figure=Figure(kind="lines", over="documents"),
        differs=(
            REPLUG_WINDOWS,
            REPLUG_SUPERVISION,
            _CORPUS,
            "GPT-3 Curie is no longer offered; GPT-J 6B reads in its place.",
        ),
    )

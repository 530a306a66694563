"""Table 2, Table 5 and Figure 4: other families of models on WikiText-103 and RealNews."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from ralm.recipes.in_context_ralm.readings import SEMANTICS, Readings, wikipedia
from ralm.recipes.recipe import Cell, Figure, Order, Recipe, Scale
from ralm.recipes.resources import LLAMA, NEO, OPT, REALNEWS_DEV, REALNEWS_TRAIN, WIKITEXT_TEST, Resource
from ralm.recipes.steps import index

_LLAMA: Final = {
    "LLaMA-7B": ((9.9,), (8.8,)),
    "LLaMA-13B": ((8.5,), (7.6,)),
    "LLaMA-33B": ((6.3,), (6.1,)),
}
_NEO: Final = {
    "GPT-Neo 1.3B": ((17.5, 12.3), (14.6, 9.9)),
    "GPT-Neo 2.7B": ((15.1, 11.0), (12.8, 9.0)),
    "GPT-J 6B": ((11.6, 9.2), (10.0, 7.7)),
}
_OPT: Final = {f"OPT {one.name.removeprefix('opt-').upper()}": ((), ()) for one in OPT}
Published = Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]


def table_2(scale: Scale) -> Recipe:
    """LLaMA on WikiText-103."""
    cells, orders = _cells(scale, LLAMA, _LLAMA, realnews=False)
    return Recipe(
        name="in-context-ralm/table-2",
        paper="In-Context RALM, Table 2",
        about="Word perplexity of LLaMA on WikiText-103, without retrieval and with BM25's first passage.",
        cells=cells,
        orders=orders,
        differs=(SEMANTICS, "LLaMA's weights are copies on the hub, under Meta's licence."),
    )


def table_5(scale: Scale) -> Recipe:
    """GPT-Neo and GPT-J on WikiText-103 and RealNews."""
    cells, orders = _cells(scale, NEO, _NEO, realnews=True)
    return Recipe(
        name="in-context-ralm/table-5",
        paper="In-Context RALM, Table 5",
        about="Perplexity of GPT-Neo and GPT-J on WikiText-103 and RealNews, without retrieval and with BM25's first "
        "passage.",
        cells=cells,
        orders=orders,
        differs=(SEMANTICS, "RealNews is C4's part that is like it."),
    )


def figure_4(scale: Scale) -> Recipe:
    """OPT on WikiText-103 and RealNews; the paper prints no figures."""
    cells, orders = _cells(scale, OPT, _OPT, realnews=True)
    sizes = {f"OPT {one.name.removeprefix('opt-').upper()}": one.parameters / 1e9 for one in OPT}
    drawn = tuple(replace(one, at=sizes[one.model], line="OPT") for one in cells)
    return Recipe(
        name="in-context-ralm/figure-4",
        paper="In-Context RALM, Figure 4",
        about="Perplexity of OPT by its size, on WikiText-103 and RealNews, without retrieval and with BM25's first "
        "passage. The paper shows a plot without figures.",
        cells=drawn,
        orders=orders,
        figure=Figure(kind="lines", over="parameters, billions", logarithmic=True),
        differs=(SEMANTICS, "RealNews is C4's part that is like it."),
    )


def _cells(
    scale: Scale, models: tuple[Resource, ...], published: Published, *, realnews: bool
) -> tuple[tuple[Cell, ...], tuple[Order, ...]]:
    found = [*_of_text(scale, models, published, "WikiText-103, word perplexity", 0)]
    if realnews:
        found += _of_text(scale, models, published, "RealNews, token perplexity", 1)
    cells = tuple(cell for pair, _ in found for cell in pair)
    return cells, tuple(order for _, order in found)


def _of_text(
    scale: Scale, models: tuple[Resource, ...], published: Published, column: str, place: int
) -> Iterator[tuple[tuple[Cell, Cell], Order]]:
    readings = (
        Readings(scale=scale, text=WIKITEXT_TEST, index=wikipedia(), tokenizer=models[0])
        if place == 0
        else Readings(scale=scale, text=REALNEWS_DEV, index=index(REALNEWS_TRAIN), tokenizer=models[0], per="token")
    )
    for (name, (plain, bm25)), lm in zip(published.items(), models, strict=True):
        none, first = readings.plain(lm), readings.bm25(lm)
        known = [values[place] if place < len(values) else None for values in (plain, bm25)]
        yield (
            (
                Cell(model=name, how="none", column=column, measure=none, published=known[0]),
                Cell(model=name, how="BM25", column=column, measure=first, published=known[1]),
            ),
            Order(better=first, worse=none, said=f"{column.partition(',')[0]}, {name}: BM25 < none"),
        )

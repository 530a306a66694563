"""In-Context RALM, Tables 1 (with Figure 2), 2, 3 and 5, and Figure 4: perplexity with BM25 and with reranking."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from ralm.recipes.measures import Per
from ralm.recipes.readings import SEMANTICS, IcrReadings, wikipedia
from ralm.recipes.recipe import Cell, Figure, Order, Recipe, Scale, orders_of
from ralm.recipes.resources import (
    GPT2,
    GPT2_NAMES,
    LLAMA,
    NEO,
    OPT,
    PILE_TEST,
    PILE_TRAIN,
    REALNEWS_DEV,
    REALNEWS_TRAIN,
    WIKITEXT_TEST,
    Resource,
)
from ralm.recipes.steps import index_step

_COLUMNS: Final = ("WikiText-103", "RealNews", "ArXiv", "Stack Exchange", "FreeLaw")
_TABLE_1: Final = {
    ("GPT-2 S", "none"): (37.5, 21.3, 12.0, 12.8, 13.0),
    ("GPT-2 S", "BM25"): (29.6, 16.1, 10.9, 11.3, 9.6),
    ("GPT-2 S", "zero-shot"): (28.6, 15.5, 10.1, 10.6, 8.8),
    ("GPT-2 S", "predictive"): (26.8,),
    ("GPT-2 M", "none"): (26.3, 15.7, 9.3, 8.8, 9.6),
    ("GPT-2 M", "BM25"): (21.5, 12.4, 8.6, 8.1, 7.4),
    ("GPT-2 M", "zero-shot"): (20.8, 12.0, 8.0, 7.7, 6.9),
    ("GPT-2 M", "predictive"): (19.7,),
    ("GPT-2 L", "none"): (22.0, 13.6, 8.4, 8.5, 8.7),
    ("GPT-2 L", "BM25"): (18.1, 10.9, 7.8, 7.8, 6.8),
    ("GPT-2 L", "zero-shot"): (17.6, 10.6, 7.3, 7.4, 6.4),
    ("GPT-2 L", "predictive"): (16.6,),
    ("GPT-2 XL", "none"): (20.0, 12.4, 7.8, 8.0, 8.0),
    ("GPT-2 XL", "BM25"): (16.6, 10.1, 7.2, 7.4, 6.4),
    ("GPT-2 XL", "zero-shot"): (16.1, 9.8, 6.8, 7.1, 6.0),
    ("GPT-2 XL", "predictive"): (15.4,),
}


def icr_table_1(scale: Scale) -> Recipe:
    """The table."""
    texts = (WIKITEXT_TEST, REALNEWS_DEV, *PILE_TEST)
    indexes = (wikipedia(), *(index_step(corpus) for corpus in (REALNEWS_TRAIN, *PILE_TRAIN)))
    cells, orders = list[Cell](), list[Order]()
    for column, text, own in zip(_COLUMNS, texts, indexes, strict=True):
        per: Per = "word" if column == "WikiText-103" else "token"
        readings = IcrReadings(scale=scale, text=text, index=own, tokenizer=GPT2[0], per=per)
        for name, lm in zip(GPT2_NAMES, GPT2, strict=True):
            measured = {
                "none": readings.plain(lm),
                "BM25": readings.bm25(lm),
                "zero-shot": readings.zero_shot(lm),
                **({"predictive": readings.predictive(lm)} if per == "word" else {}),
            }
            for how, measure in measured.items():
                published = dict(zip(_COLUMNS, _TABLE_1[name, how], strict=False)).get(column)
                head = f"{column}, {measure.per} perplexity"
                cells.append(Cell(model=name, how=how, column=head, measure=measure, published=published))
            pairs = (("BM25", "none"), ("zero-shot", "BM25"), ("predictive", "zero-shot"))
            orders += orders_of(f"{column}, {name}", measured, pairs)
    return Recipe(
        name="in-context-ralm/table-1",
        paper="In-Context RALM, Table 1 and Figure 2",
        about="Perplexity of GPT-2 on five corpora: without retrieval, with BM25's first passage, and with the best of "
        "16 by zero-shot and by predictive reranking.",
        cells=tuple(cells),
        orders=tuple(orders),
        figure=Figure(kind="bars", over="reading"),
        differs=(
            SEMANTICS,
            "RealNews is C4's part that is like it. ArXiv, Stack Exchange and FreeLaw are those of the Pile without "
            "the parts under copyright.",
            "Which 300,000 examples the reranker learned from is not published. Here they are drawn from all of "
            "WikiText-103's training set, 16 in a row, with prefixes of 128 to 252 tokens; candidates that share 13 "
            "words with the text at the continuation are left out.",
        ),
    )


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
_Published = Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]


def icr_table_2(scale: Scale) -> Recipe:
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


def icr_table_5(scale: Scale) -> Recipe:
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


def icr_figure_4(scale: Scale) -> Recipe:
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
    scale: Scale, models: tuple[Resource, ...], published: _Published, *, realnews: bool
) -> tuple[tuple[Cell, ...], tuple[Order, ...]]:
    found = [*_of_text(scale, models, published, "WikiText-103, word perplexity", 0)]
    if realnews:
        found += _of_text(scale, models, published, "RealNews, token perplexity", 1)
    cells = tuple(cell for pair, _ in found for cell in pair)
    return cells, tuple(order for _, order in found)


def _of_text(
    scale: Scale, models: tuple[Resource, ...], published: _Published, column: str, place: int
) -> Iterator[tuple[tuple[Cell, Cell], Order]]:
    readings = (
        IcrReadings(scale=scale, text=WIKITEXT_TEST, index=wikipedia(), tokenizer=models[0])
        if place == 0
        else IcrReadings(
            scale=scale, text=REALNEWS_DEV, index=index_step(REALNEWS_TRAIN), tokenizer=models[0], per="token"
        )
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


_TABLE_3: Final = {
    "GPT-2 M": ((20.8, 12.1), (20.8, 12.0)),
    "GPT-2 L": ((17.7, 10.7), (17.6, 10.6)),
    "GPT-2 XL": ((16.2, 9.9), (16.1, 9.8)),
}


def icr_table_3(scale: Scale) -> Recipe:
    """The table."""
    wikitext = IcrReadings(scale=scale, text=WIKITEXT_TEST, index=wikipedia(), tokenizer=GPT2[0])
    news = IcrReadings(scale=scale, text=REALNEWS_DEV, index=index_step(REALNEWS_TRAIN), tokenizer=GPT2[0], per="token")
    columns = (("WikiText-103, word perplexity", wikitext), ("RealNews, token perplexity", news))
    cells = []
    for (name, rows), lm in zip(_TABLE_3.items(), GPT2[1:], strict=True):
        for how, ranker, published in zip(
            ("ranked by GPT-2 S", "ranked by itself"), (GPT2[0], None), rows, strict=True
        ):
            cells += [
                Cell(model=name, how=how, column=column, measure=readings.zero_shot(lm, ranker), published=value)
                for (column, readings), value in zip(columns, published, strict=True)
            ]
    return Recipe(
        name="in-context-ralm/table-3",
        paper="In-Context RALM, Table 3",
        about="Zero-shot reranking by GPT-2 S against reranking by the model that reads.",
        cells=tuple(cells),
        differs=(SEMANTICS, "RealNews is C4's part that is like it."),
    )

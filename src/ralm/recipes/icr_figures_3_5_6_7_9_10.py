"""In-Context RALM, Figures 3, 5, 6, 7, 9 and 10: GPT-2 by retriever, query length, stride and reranker."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ralm.recipes.measures import Measure
from ralm.recipes.readings import ICR_PLAN, ICR_SEMANTICS, NO_FIGURES, Readings, on_wikitext_dev
from ralm.recipes.recipe import Cell, Figure, Order, Recipe, Scale, cells_of, orders_of
from ralm.recipes.resources import BERT, CONTRIEVER, GPT2, SPIDER, WIKIPEDIA, WIKITEXT_TITLES, Resource
from ralm.recipes.steps import index_step

_STRIDES: Final = (1, 2, 4, 8, 16, 32, 64)
_FEW_STRIDES: Final = (4, 16, 64)
_LENGTHS: Final = (8, 16, 32, 64, 128)
_COLUMN: Final = "WikiText-103 dev, word perplexity"
_BM25_LENGTH: Final = 32
_DENSE_LENGTH: Final = 64


def icr_figure_3(scale: Scale) -> Recipe:
    """Four retrievers, each with its best query length."""
    readings = on_wikitext_dev(scale)
    encoders = {"BERT": BERT, "Contriever": CONTRIEVER, "Spider": SPIDER}
    dense = {name: _by_length(readings, encoder)(_DENSE_LENGTH) for name, encoder in encoders.items()}
    measured = {"none": readings.plain(GPT2[0]), **dense, "BM25": readings.bm25(GPT2[0])}
    return _figure(
        "3",
        "GPT-2 S on WikiText-103's development set with the first passage of four retrievers, each with its best query "
        "length: 32 tokens for BM25, 64 for the dense ones.",
        cells_of("GPT-2 S", _COLUMN, measured),
        orders_of("", measured, *(("BM25", one) for one in ("none", *dense))),
        Figure(kind="bars", over="retriever"),
    )


def icr_figure_5(scale: Scale) -> Recipe:
    """BM25 by the number of tokens between retrievals."""
    readings, strides = on_wikitext_dev(scale), _FEW_STRIDES if scale.small else _STRIDES
    measured = {stride: readings.at(replace(ICR_PLAN, stride=stride)).bm25(GPT2[0]) for stride in strides}
    return _figure(
        "5",
        "GPT-2 S on WikiText-103's development set with BM25's first passage, by the stride: the number of tokens "
        "between retrievals.",
        _line(readings, "BM25", measured),
        [
            Order(better=measured[less], worse=measured[more], text=f"stride {less} < {more}")
            for less, more in itertools.pairwise(strides)
        ],
        Figure(kind="lines", over="stride", logarithmic=True),
    )


def icr_figure_6(scale: Scale) -> Recipe:
    """BM25 by the length of the query."""
    return _lengths(scale, "6", "BM25", None, _BM25_LENGTH)


def icr_figure_7(scale: Scale) -> Recipe:
    """The oracle: the best of BM25's first 16."""
    readings = on_wikitext_dev(scale)
    cells, orders = list[Cell](), list[Order]()
    for lm in GPT2:
        measured = {
            "none": readings.plain(lm),
            "BM25": readings.bm25(lm),
            "zero-shot": readings.zero_shot(lm),
            "oracle": readings.oracle(lm),
        }
        cells += cells_of(lm.label, _COLUMN, measured)
        orders += orders_of(lm.label, measured, ("BM25", "none"), ("zero-shot", "BM25"), ("oracle", "zero-shot"))
    return _figure(
        "7",
        "What choosing among BM25's first 16 passages could gain: the oracle takes the one that makes the targets "
        "most likely.",
        cells,
        orders,
        Figure(kind="bars", over="reading"),
    )


def icr_figure_9(scale: Scale) -> Recipe:
    """BERT by the length of the query."""
    return _lengths(scale, "9", "BERT", BERT, _DENSE_LENGTH)


def icr_figure_10(scale: Scale) -> Recipe:
    """Contriever by the length of the query."""
    return _lengths(scale, "10", "Contriever", CONTRIEVER, _DENSE_LENGTH)


def _lengths(scale: Scale, number: str, retriever: str, encoder: Resource | None, best: int) -> Recipe:
    readings = on_wikitext_dev(scale)
    measured = {length: _by_length(readings, encoder)(length) for length in _LENGTHS}
    others = [length for length in (_LENGTHS[0], _LENGTHS[-1]) if length != best]
    return _figure(
        number,
        f"GPT-2 S on WikiText-103's development set with {retriever}'s first passage, by the number of tokens in the "
        f"query; {best} are best in the paper.",
        _line(readings, retriever, measured),
        [
            Order(better=measured[best], worse=measured[length], text=f"{best} query tokens < {length}")
            for length in others
        ],
        Figure(kind="lines", over="tokens in the query", logarithmic=True),
    )


def _by_length(readings: Readings, encoder: Resource | None) -> Callable[[int], Measure]:
    """GPT-2 S with the first passage of BM25 or of an encoder, as a function of the tokens in a query."""

    def measure(tokens: int) -> Measure:
        own = readings.at(replace(ICR_PLAN, query_tokens=tokens))
        if encoder is None:
            return own.bm25(GPT2[0])
        return own.dense(GPT2[0], index_step(WIKIPEDIA, titles=WIKITEXT_TITLES, encoder=encoder))

    return measure


def _line(readings: Readings, how: str, measured: Mapping[int, Measure]) -> list[Cell]:
    """The cells of a line, with the one without retrieval before them."""
    none = cells_of("GPT-2 S", _COLUMN, {"none": readings.plain(GPT2[0])})
    return none + [cell for at, one in measured.items() for cell in cells_of("GPT-2 S", _COLUMN, {how: one}, at=at)]


def _figure(number: str, about: str, cells: Iterable[Cell], orders: Sequence[Order], figure: Figure) -> Recipe:
    return Recipe(
        name=f"in-context-ralm/figure-{number}",
        paper=f"In-Context RALM, Figure {number}",
        about=f"{about} {NO_FIGURES}",
        cells=tuple(cells),
        orders=tuple(orders),
        figure=figure,
        differs=(ICR_SEMANTICS,),
    )

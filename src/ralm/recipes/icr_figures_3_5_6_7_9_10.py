"""In-Context RALM, Figures 3, 5, 6, 7, 9 and 10: GPT-2 by retriever, query length, stride and reranker."""

import itertools
from dataclasses import replace
from typing import Final

from ralm.reading.plan import PlanOptions
from ralm.recipes.measures import Perplexity
from ralm.recipes.readings import ICR_PLAN, SEMANTICS, on_wikitext_dev
from ralm.recipes.recipe import Cell, Figure, Order, Recipe, Scale, cells_of, orders_of
from ralm.recipes.resources import (
    BERT,
    CONTRIEVER,
    GPT2,
    GPT2_NAMES,
    SPIDER,
    WIKIPEDIA,
    WIKITEXT_DEV,
    WIKITEXT_TITLES,
    Resource,
)
from ralm.recipes.steps import Step, eval_step, index_step, retrieve_step
from ralm.retrieval.dense.options import EncoderOptions
from ralm.retrieval.retriever import RetrieverOptions

_LENGTHS: Final = (8, 16, 32, 64, 128)
_COLUMN: Final = "WikiText-103 dev, word perplexity"
_DENSE: Final = RetrieverOptions(retriever="dense")
_BM25_LENGTH: Final = 32
_DENSE_LENGTH: Final = 64


def dense_index(encoder: Resource) -> Step:
    """Exact search over Wikipedia's vectors, without the articles of WikiText-103's test and development sets."""
    return index_step(WIKIPEDIA, titles=WIKITEXT_TITLES, encoder=encoder, encoding=EncoderOptions(encoder=""))


def dense(scale: Scale, encoder: Resource, tokens: int) -> Perplexity:
    """GPT-2 S with the first passage of a dense retriever that is asked with so many tokens."""
    plan, limit = scale.plan(_asking(tokens)), scale.limit_tokens
    found = retrieve_step(WIKITEXT_DEV, GPT2[0], dense_index(encoder), plan, k=1, retrieval=_DENSE, limit_tokens=limit)
    return Perplexity(eval_step(WIKITEXT_DEV, GPT2[0], plan, retrieved=found, limit_tokens=limit), "word")


def _asking(tokens: int) -> PlanOptions:
    return PlanOptions(semantics=ICR_PLAN.semantics, query_tokens=tokens)


def icr_figure_3(scale: Scale) -> Recipe:
    """Four retrievers, each with its best query length."""
    readings = on_wikitext_dev(scale)
    none, bm25 = readings.plain(GPT2[0]), readings.bm25(GPT2[0])
    found = {"BERT": BERT, "Contriever": CONTRIEVER, "Spider": SPIDER}
    measured = {name: dense(scale, encoder, _DENSE_LENGTH) for name, encoder in found.items()}
    hows = {"none": none, **measured, "BM25": bm25}
    return Recipe(
        name="in-context-ralm/figure-3",
        paper="In-Context RALM, Figure 3",
        about="GPT-2 S on WikiText-103's development set with the first passage of four retrievers, each with its best "
        "query length: 32 tokens for BM25, 64 for the dense ones. The paper shows a plot without figures.",
        cells=tuple(Cell(model="GPT-2 S", how=how, column=_COLUMN, measure=one) for how, one in hows.items()),
        orders=(
            Order(better=bm25, worse=none, said="BM25 < none"),
            *(Order(better=bm25, worse=one, said=f"BM25 < {name}") for name, one in measured.items()),
        ),
        figure=Figure(kind="bars", over="retriever"),
        differs=(SEMANTICS,),
    )


def _by_length(scale: Scale, name: str, number: str, retriever: str, encoder: Resource | None, best: int) -> Recipe:
    readings = on_wikitext_dev(scale)
    measured = {
        length: dense(scale, encoder, length) if encoder else readings.at(_asking(length)).bm25(GPT2[0])
        for length in _LENGTHS
    }
    lines = tuple(
        Cell(model="GPT-2 S", how=retriever, column=_COLUMN, measure=one, at=length) for length, one in measured.items()
    )
    none = Cell(model="GPT-2 S", how="none", column=_COLUMN, measure=readings.plain(GPT2[0]))
    others = [length for length in (_LENGTHS[0], _LENGTHS[-1]) if length != best]
    return Recipe(
        name=name,
        paper=f"In-Context RALM, Figure {number}",
        about=f"GPT-2 S on WikiText-103's development set with {retriever}'s first passage, by the number of tokens in "
        f"the query; {best} are best in the paper. The paper shows a plot without figures.",
        cells=(none, *lines),
        orders=tuple(
            Order(better=measured[best], worse=measured[length], said=f"{best} query tokens < {length}")
            for length in others
        ),
        figure=Figure(kind="lines", over="tokens in the query", logarithmic=True),
        differs=(SEMANTICS,),
    )


def icr_figure_6(scale: Scale) -> Recipe:
    """BM25 by the length of the query."""
    return _by_length(scale, "in-context-ralm/figure-6", "6", "BM25", None, _BM25_LENGTH)


def icr_figure_9(scale: Scale) -> Recipe:
    """BERT by the length of the query."""
    return _by_length(scale, "in-context-ralm/figure-9", "9", "BERT", BERT, _DENSE_LENGTH)


def icr_figure_10(scale: Scale) -> Recipe:
    """Contriever by the length of the query."""
    return _by_length(scale, "in-context-ralm/figure-10", "10", "Contriever", CONTRIEVER, _DENSE_LENGTH)


_STRIDES: Final = (1, 2, 4, 8, 16, 32, 64)
_FEW_STRIDES: Final = (4, 16, 64)


def icr_figure_5(scale: Scale) -> Recipe:
    """BM25 by the number of tokens between retrievals."""
    readings, strides = on_wikitext_dev(scale), _FEW_STRIDES if scale.small else _STRIDES
    measured = {stride: readings.at(replace(ICR_PLAN, stride=stride)).bm25(GPT2[0]) for stride in strides}
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


def icr_figure_7(scale: Scale) -> Recipe:
    """The oracle: the best of BM25's first 16."""
    readings = on_wikitext_dev(scale)
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

"""In-Context RALM, Figures 3 to 10: GPT-2 by retriever, query length, stride and reranker; OPT by size; questions by
the number of passages."""

import itertools
from dataclasses import replace
from typing import Final

from ralm.recipes import icr_tables_1_2_3_4_5, measures, resources, steps
from ralm.recipes.readings import ICR_PLAN, ICR_SEMANTICS, on_wikitext_dev
from ralm.recipes.recipe import Cell, Entries, Figure, Order, Scale, cells_of, line_of, orders_of, recipe
from ralm.reranking.zero_shot import ZeroShot

_STRIDES: Final = (1, 2, 4, 8, 16, 32, 64)
_FEW_STRIDES: Final = (4, 16, 64)
_RERANK_TOKENS: Final = (4, 8, 16, 32)
_LENGTHS: Final = (8, 16, 32, 64, 128)
_COLUMN: Final = "WikiText-103 dev, word perplexity"
_OVER_LENGTHS: Final = Figure("lines", over="tokens in the query", logarithmic=True)
_DENSE_LENGTH: Final = 64


@recipe("in-context-ralm/figure-3", figure=Figure("bars", over="retriever"), differs=(ICR_SEMANTICS,))
def icr_figure_3(scale: Scale) -> Entries:
    """GPT-2 S on WikiText-103's development set with the first passage of four retrievers, each with its best query
    length: 32 tokens for BM25, 64 for the dense ones. The paper shows a plot without figures."""
    readings, encoders = (
        on_wikitext_dev(scale),
        {"BERT": resources.BERT, "Contriever": resources.CONTRIEVER, "Spider": resources.SPIDER},
    )
    dense = {name: _by_length(scale, encoder, _DENSE_LENGTH) for name, encoder in encoders.items()}
    measured = {"none": readings.plain(resources.GPT2[0]), **dense, "BM25": readings.bm25(resources.GPT2[0])}
    yield from cells_of("GPT-2 S", _COLUMN, measured)
    yield from orders_of("", measured, *(("BM25", one) for one in ("none", *dense)))


@recipe(
    "in-context-ralm/figure-4",
    figure=Figure("lines", over="parameters, billions", logarithmic=True),
    differs=(ICR_SEMANTICS, icr_tables_1_2_3_4_5.REALNEWS),
)
def icr_figure_4(scale: Scale) -> Entries:
    """Perplexity of OPT by its size, on WikiText-103 and RealNews, without retrieval and with BM25's first passage. The
    paper shows a plot without figures."""
    sizes = {lm.label: lm.parameters / 1e9 for lm in resources.OPT}
    for one in icr_tables_1_2_3_4_5.perplexities(
        icr_tables_1_2_3_4_5.texts_of(scale, resources.OPT[0]), resources.OPT, icr_tables_1_2_3_4_5.FIRST_OF_BM25, {}
    ):
        yield replace(one, at=sizes[one.model], line="OPT") if isinstance(one, Cell) else one


@recipe(
    "in-context-ralm/figure-5",
    figure=Figure("lines", over="stride", logarithmic=True),
    differs=(ICR_SEMANTICS,),
)
def icr_figure_5(scale: Scale) -> Entries:
    """GPT-2 S on WikiText-103's development set with BM25's first passage, by the stride: the number of tokens between
    retrievals. The paper shows a plot without figures."""
    readings, strides = on_wikitext_dev(scale), _FEW_STRIDES if scale.small else _STRIDES
    measured = {stride: readings.at(replace(ICR_PLAN, stride=stride)).bm25(resources.GPT2[0]) for stride in strides}
    yield from cells_of("GPT-2 S", _COLUMN, {"none": readings.plain(resources.GPT2[0])})
    yield from line_of("GPT-2 S", _COLUMN, "BM25", measured)
    for less, more in itertools.pairwise(strides):
        yield Order(measured[less], measured[more], f"stride {less} < {more}")


@recipe("in-context-ralm/figure-6", figure=_OVER_LENGTHS, differs=(ICR_SEMANTICS,))
def icr_figure_6(scale: Scale) -> Entries:
    """GPT-2 S on WikiText-103's development set with BM25's first passage, by the number of tokens in the query; 32 are
    best in the paper. The paper shows a plot without figures."""
    return _lengths(scale, "BM25", None, best=32)


@recipe(
    "in-context-ralm/footnote-7",
    figure=Figure("lines", over="tokens of the prefix to rank by", logarithmic=True),
    differs=(ICR_SEMANTICS,),
)
def icr_footnote_7(scale: Scale) -> Entries:
    """GPT-2 S on WikiText-103's development set with the best of BM25's first {candidates} passages by zero-shot
    reranking, by the number of the prefix's last tokens that they are ranked by; 16 are best in the paper. The paper
    names the numbers that it tried, without figures."""
    readings = on_wikitext_dev(scale)
    bm25 = readings.bm25(resources.GPT2[0])
    measured = {
        tokens: readings.zero_shot(resources.GPT2[0], tokens=None if tokens == ZeroShot().tokens else tokens)
        for tokens in _RERANK_TOKENS
    }
    yield from cells_of("GPT-2 S", _COLUMN, {"BM25": bm25})
    yield from line_of("GPT-2 S", _COLUMN, "zero-shot", measured)
    for tokens in _RERANK_TOKENS:
        if tokens != 16:
            yield Order(measured[16], measured[tokens], f"16 tokens to rank by < {tokens}")


@recipe("in-context-ralm/figure-7", figure=Figure("bars", over="reading"), differs=(ICR_SEMANTICS,))
def icr_figure_7(scale: Scale) -> Entries:
    """What choosing among BM25's first {candidates} passages could gain: the oracle takes the one that makes the
    targets most likely. The paper shows a plot without figures."""
    readings = on_wikitext_dev(scale)
    for lm in resources.GPT2:
        measured = {
            "none": readings.plain(lm),
            "BM25": readings.bm25(lm),
            "zero-shot": readings.zero_shot(lm),
            "oracle": readings.oracle(lm),
        }
        yield from cells_of(lm.label, _COLUMN, measured)
        yield from orders_of(lm.label, measured, ("BM25", "none"), ("zero-shot", "BM25"), ("oracle", "zero-shot"))


@recipe(
    "in-context-ralm/figure-8",
    figure=Figure("lines", over="passages in the prompt"),
    differs=(
        icr_tables_1_2_3_4_5.ICR_CODE,
        "The paper takes development sets; NQ's here is what papers call its test set.",
    ),
)
def icr_figure_8(scale: Scale) -> Entries:
    """Questions that LLaMA answers, by the number of DPR's passages in the prompt. The paper shows a plot without
    figures."""
    numbers = (0, 1, 2) if scale.small else (0, 1, 2, 3, 4, 5)
    for column, questions in icr_tables_1_2_3_4_5.QUESTIONS.items():
        for lm in resources.LLAMA:
            step = icr_tables_1_2_3_4_5.answered_with_dpr(scale, questions, lm, steps.FIRST_PASSAGE, numbers)
            measured = {number: measures.exact_matches_at(step, number) for number in numbers}
            yield from line_of(lm.label, f"{column}, exact match, %", "DPR", measured)


@recipe("in-context-ralm/figure-9", figure=_OVER_LENGTHS, differs=(ICR_SEMANTICS,))
def icr_figure_9(scale: Scale) -> Entries:
    """GPT-2 S on WikiText-103's development set with BERT's first passage, by the number of tokens in the query; 64 are
    best in the paper. The paper shows a plot without figures."""
    return _lengths(scale, "BERT", resources.BERT, best=_DENSE_LENGTH)


@recipe("in-context-ralm/figure-10", figure=_OVER_LENGTHS, differs=(ICR_SEMANTICS,))
def icr_figure_10(scale: Scale) -> Entries:
    """GPT-2 S on WikiText-103's development set with Contriever's first passage, by the number of tokens in the query;
    64 are best in the paper. The paper shows a plot without figures."""
    return _lengths(scale, "Contriever", resources.CONTRIEVER, best=_DENSE_LENGTH)


def _lengths(scale: Scale, retriever: str, encoder: resources.Resource | None, *, best: int) -> Entries:
    measured = {length: _by_length(scale, encoder, length) for length in _LENGTHS}
    yield from cells_of("GPT-2 S", _COLUMN, {"none": on_wikitext_dev(scale).plain(resources.GPT2[0])})
    yield from line_of("GPT-2 S", _COLUMN, retriever, measured)
    for length in (_LENGTHS[0], _LENGTHS[-1]):
        yield Order(measured[best], measured[length], f"{best} query tokens < {length}")


def _by_length(scale: Scale, encoder: resources.Resource | None, tokens: int) -> measures.Measure:
    """GPT-2 S with the first passage of BM25 or of an encoder, by the tokens in a query."""
    readings = on_wikitext_dev(scale).at(replace(ICR_PLAN, query_tokens=tokens))
    if encoder is None:
        return readings.bm25(resources.GPT2[0])
    return readings.dense(
        resources.GPT2[0], steps.index_step(resources.WIKIPEDIA, titles=resources.WIKITEXT_TITLES, encoder=encoder)
    )

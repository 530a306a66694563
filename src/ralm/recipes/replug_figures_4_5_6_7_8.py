"""REPLUG: Figure 4, bits per byte by the number of documents; Figures 5, 6 and 8, retrievers and families of models on
WikiText-103; Figure 7, which tokens gain from passages."""

import itertools
from collections.abc import Sequence
from typing import Final

from ralm.recipes import replug_tables_1_2_3, resources, steps
from ralm.recipes.measures import CLASSES, Measure, gain_by_frequency, gain_of_class
from ralm.recipes.readings import (
    BM25_SEARCH,
    DENSE_SEARCH,
    REPLUG_PLAN,
    REPLUG_SUPERVISION,
    REPLUG_WINDOWS,
    TextReadings,
    pile_index,
    trained_retriever,
)
from ralm.recipes.recipe import Entries, Figure, Order, Scale, cells_of, line_of, orders_of, recipe
from ralm.retrieval.retriever import RetrieverOptions

_COLUMN: Final = "WikiText-103, word perplexity"
_BOUNDS: Final = (0, 10, 100, 1_000, 10_000, None)
"""Frequencies of words, in a million passages."""


@recipe(
    "replug/figure-4",
    figure=Figure("lines", over="documents"),
    differs=(
        REPLUG_WINDOWS,
        REPLUG_SUPERVISION,
        replug_tables_1_2_3.PILE_COPY,
        "GPT-3 Curie is no longer offered; GPT-J 6B reads in its place.",
    ),
)
def replug_figure_4(scale: Scale) -> Entries:
    """Bits per byte of the Pile by the number of documents in the ensemble. Random documents are the control: the gain
    is not that of averaging. The paper shows a plot of GPT-3 Curie without figures."""
    lm, numbers = resources.NEO[-1], (1, 2, 4) if scale.small else (1, 2, 4, 6, 8, 10)
    few, most = numbers[0], numbers[-1]
    readings = TextReadings(scale=scale, text=resources.PILE_ALL_TEST, tokenizer=lm, per="byte", plan=REPLUG_PLAN)

    def line(retrieval: RetrieverOptions, vectors: steps.Step | None = None) -> dict[int, Measure]:
        return {
            number: readings.ensemble(
                lm, pile_index(), documents=number, retrieved=most, retrieval=retrieval, vectors=vectors
            )
            for number in numbers
        }

    none, random, own = readings.plain(lm), line(RetrieverOptions(retriever="random")), line(DENSE_SEARCH)
    yield from cells_of(lm.label, replug_tables_1_2_3.BITS_COLUMN, {"none": none})
    yield from line_of(lm.label, replug_tables_1_2_3.BITS_COLUMN, "random", random)
    yield from line_of(lm.label, replug_tables_1_2_3.BITS_COLUMN, "REPLUG", own)
    yield from line_of(
        lm.label, replug_tables_1_2_3.BITS_COLUMN, "REPLUG LSR", line(DENSE_SEARCH, trained_retriever(scale))
    )
    yield Order(own[most], none, f"{most} documents < none")
    yield Order(none, random[most], f"none < {most} random documents")
    yield Order(own[most], own[few], f"{most} documents < {few}")


@recipe(
    "replug/figure-5",
    figure=Figure("bars", over="retriever"),
    differs=(REPLUG_WINDOWS, REPLUG_SUPERVISION),
)
def replug_figure_5(scale: Scale) -> Entries:
    """GPT-2 L and XL on WikiText-103 with an ensemble over {documents} passages of five retrievers. The paper shows
    a plot without figures."""
    return _retrievers(scale, resources.GPT2[2:], ("BERT", "DPR", "Contriever", "BM25", "Contriever LSR"))


@recipe(
    "replug/figure-6",
    figure=Figure("lines", over="parameters, billions", logarithmic=True),
    differs=(REPLUG_WINDOWS,),
)
def replug_figure_6(scale: Scale) -> Entries:
    """GPT-2, OPT and BLOOM on WikiText-103 by their size, without retrieval and with REPLUG. The paper shows a plot
    without figures."""
    index = steps.index_step(resources.WIKITEXT_TRAIN, encoder=resources.CONTRIEVER)
    for family, models in (("GPT-2", resources.GPT2), ("OPT", resources.OPT), ("BLOOM", resources.BLOOM)):
        readings = replug_readings(scale, models[0])
        for lm in models:
            measured = {"none": readings.plain(lm), "REPLUG": readings.ensemble(lm, index)}
            yield from cells_of(lm.name, _COLUMN, measured, at=lm.parameters / 1e9, line=family)
            yield from orders_of(lm.name, measured, ("REPLUG", "none"))


@recipe(
    "replug/figure-7",
    figure=Figure("bars", over="tokens"),
    differs=(REPLUG_WINDOWS, "The figure shows one example; this is a table of all tokens."),
)
def replug_figure_7(scale: Scale) -> Entries:
    """Which tokens gain from passages: by class, and by how many passages of the corpus have the word. The paper shows
    one example, in which rare entities gain most; this asks it of every token."""
    readings, lm = replug_readings(scale, resources.GPT2[0]), resources.GPT2[-1]
    read = readings.ensemble(lm, steps.index_step(resources.WIKITEXT_TRAIN, encoder=resources.CONTRIEVER))
    return gains_by_token("GPT-2 XL", read, readings.plain(lm), steps.index_step(resources.WIKITEXT_TRAIN))


@recipe(
    "replug/figure-8",
    figure=Figure("bars", over="retriever"),
    differs=(REPLUG_WINDOWS, REPLUG_SUPERVISION),
)
def replug_figure_8(scale: Scale) -> Entries:
    """GPT-2 on WikiText-103 without retrieval, with Contriever, Contriever LSR and BM25. The paper shows a plot without
    figures."""
    return _retrievers(scale, resources.GPT2, ("Contriever", "BM25", "Contriever LSR"))


def _retrievers(scale: Scale, models: Sequence[resources.Resource], hows: Sequence[str]) -> Entries:
    """A cell for each model and retriever, and the orders among retrievers that the paper reports."""
    readings = replug_readings(scale, resources.GPT2[0])
    indexes = {
        "BERT": steps.index_step(resources.WIKITEXT_TRAIN, encoder=resources.BERT),
        "DPR": steps.index_step(resources.WIKITEXT_TRAIN, encoder=resources.DPR, query_encoder=resources.DPR_QUESTIONS),
        "Contriever": steps.index_step(resources.WIKITEXT_TRAIN, encoder=resources.CONTRIEVER),
        "BM25": steps.index_step(resources.WIKITEXT_TRAIN),
        "Contriever LSR": steps.index_step(resources.WIKITEXT_TRAIN, encoder=trained_retriever(scale)),
    }
    for lm in models:
        measured = {"none": readings.plain(lm)}
        for how in hows:
            retrieval = BM25_SEARCH if how == "BM25" else DENSE_SEARCH
            measured[how] = readings.ensemble(lm, indexes[how], retrieval=retrieval)
        yield from cells_of(lm.label, _COLUMN, measured)
        pairs = (("Contriever", "none"), ("BM25", "Contriever"), ("Contriever LSR", "BM25"))
        yield from orders_of(lm.label, measured, *pairs)


def replug_readings(scale: Scale, tokenizer: resources.Resource) -> TextReadings:
    """WikiText-103 as REPLUG reads it."""
    return TextReadings(scale=scale, text=resources.WIKITEXT_TEST, tokenizer=tokenizer, plan=REPLUG_PLAN)


def gains_by_token(model: str, read: Measure, plain: Measure, index: steps.Step) -> Entries:
    """The gain of a reading over the one without passages, by the class of tokens and by the frequency of words."""
    [run], [without] = read.steps, plain.steps
    measures = {str(one): gain_of_class(run, without, one) for one in CLASSES}
    for lowest, end in itertools.pairwise(_BOUNDS):
        between = f"{lowest:,} or more" if end is None else f"{lowest:,} to {end:,}"
        how = f"{between} of a million passages have the word"
        measures[how] = gain_by_frequency(run, without, index, lowest or 0, end)
    return cells_of(model, "gain, nats a token", measures)

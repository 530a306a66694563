"""Analyses of our own: which tokens gain, contamination, the oracle by the number of candidates, and the papers against
their published code."""

import itertools
from typing import Any, Final

from ralm.answering.options import AnswerOptions, AnswerSemantics, Joining
from ralm.reading import ReadingOptions
from ralm.reading.plan import PlanOptions
from ralm.recipes import measures, replug_figures_4_5_6_7_8, resources, steps
from ralm.recipes.readings import (
    DENSE_SEARCH,
    TextReadings,
    ensemble_of,
    on_wikitext_dev,
    wikipedia,
)
from ralm.recipes.recipe import REPLUG_DOCUMENTS, Entries, Figure, Order, Scale, cells_of, line_of, recipe
from ralm.retrieval.dense.options import EncoderOptions

_OVERLAPS: Final = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

_Pairs = dict[str, tuple[measures.Measure, measures.Measure]]
"""The figures of the paper's text and of its code, by the difference between them."""


@recipe("analysis/gain-by-token", "which tokens gain", figure=Figure("bars", over="tokens"))
def gain_by_token(scale: Scale) -> Entries:
    """Which tokens gain from BM25's first passage: by class, and by how many passages of the corpus have the word."""
    readings = on_wikitext_dev(scale)
    return replug_figures_4_5_6_7_8.gains_by_token(
        "GPT-2 S", readings.bm25(resources.GPT2[0]), readings.plain(resources.GPT2[0]), wikipedia()
    )


@recipe(
    "analysis/contamination",
    "contamination curve",
    figure=Figure("lines", over="greatest overlap of a passage, %", logarithmic=True),
)
def contamination(scale: Scale) -> Entries:
    """How much of the gain from passages is near-duplicates of the evaluated text. Passages that overlap it more than a
    threshold are taken out, and their targets count as read without passages. The overlap is the share of a passage's
    runs of eight words that stand in the text."""
    readings = on_wikitext_dev(scale)
    [run], [without] = readings.bm25(resources.GPT2[0]).steps, readings.plain(resources.GPT2[0]).steps
    for share, column in enumerate(("lower token perplexity, %", "targets that keep their passage, %")):
        for limit in _OVERLAPS:
            measured = {"BM25": measures.gain_below_overlap(run, without, limit, share=bool(share))}
            yield from cells_of("GPT-2 S", column, measured, at=100 * limit)
    yield Order(
        measures.gain_below_overlap(run, without, 1.0),
        measures.gain_below_overlap(run, without, 0.0),
        "all passages gain more than those without any shared run of eight words",
    )


@recipe(
    "analysis/oracle-by-candidates",
    "oracle by the number of candidates",
    figure=Figure("lines", over="candidates", logarithmic=True),
)
def oracle_by_candidates(scale: Scale) -> Entries:
    """How much better the best passage is than the first, by how many of BM25's passages it is chosen from."""
    readings, numbers = on_wikitext_dev(scale), (1, 2, 6) if scale.small else (1, 2, 4, 8, 16)
    column = "WikiText-103 dev, word perplexity"
    oracle = {number: readings.oracle(resources.GPT2[0], number) for number in numbers}
    yield from cells_of("GPT-2 S", column, {"none": readings.plain(resources.GPT2[0])})
    yield from line_of("GPT-2 S", column, "oracle", oracle)
    for less, more in itertools.pairwise(numbers):
        yield Order(oracle[more], oracle[less], f"best of {more} < best of {less}")


@recipe("analysis/paper-or-code", "the papers against their published code")
def paper_or_code(scale: Scale) -> Entries:
    """What each difference between the text of the papers and their published code changes, all else equal."""
    models = {"GPT-2 S": _of_texts(scale), "LLaMA-13B": _of_questions(scale)}
    for model, pairs in models.items():
        for column, (paper, code) in pairs.items():
            yield from cells_of(model, f"{column}, {paper.label}", {"paper": paper, "code": code})


def _of_texts(scale: Scale) -> _Pairs:
    """In the code of In-Context RALM, the document overwrites the oldest tokens, the first window is read without a
    document, and words are counted by their spaces. In the code of REPLUG, weights are inner products, not cosines."""
    code = TextReadings(
        scale=scale, text=resources.WIKITEXT_TEST, index=wikipedia(), tokenizer=resources.GPT2[0], per="token"
    )
    paper = code.at(PlanOptions(semantics="paper"))
    [plain] = paper.plain(resources.GPT2[0]).steps
    cosine, product = (
        replug_figures_4_5_6_7_8.replug_readings(scale, resources.GPT2[0]).ensemble(
            resources.GPT2[0],
            steps.index_step(resources.WIKITEXT_TRAIN, encoder=resources.CONTRIEVER, encoding=encoding),
        )
        for encoding in (EncoderOptions(encoder="", normalize=True), EncoderOptions(encoder=""))
    )
    return {
        "Windows, without retrieval": (paper.plain(resources.GPT2[0]), code.plain(resources.GPT2[0])),
        "Words": (measures.perplexity_of(plain, "word"), measures.perplexity_of(plain, "space")),
        "Windows, BM25": (paper.bm25(resources.GPT2[0]), code.bm25(resources.GPT2[0])),
        "Windows, zero-shot reranking": (paper.zero_shot(resources.GPT2[0]), code.zero_shot(resources.GPT2[0])),
        "Similarity: cosine or inner product": (cosine, product),
    }


def _of_questions(scale: Scale) -> _Pairs:
    """The codes cut prompts of questions otherwise, and let each passage of an ensemble write an answer."""
    read: dict[str, Any] = {
        "index": steps.index_step(resources.WIKIPEDIA, encoder=resources.CONTRIEVER),
        "retrieval": DENSE_SEARCH,
    }
    ensemble = {**read, "reading": ensemble_of(scale.documents(REPLUG_DOCUMENTS))}
    two = {**read, "reading": ReadingOptions(reader="concatenation", documents=2)}
    shown: dict[str, Any] = {"demonstrations": resources.NQ_TRAIN, "shots": scale.shots(16), "prompt": "replug"}
    few: dict[str, Any] = {"demonstrations": resources.MMLU_DEV, "shots": scale.shots(5), "limit": scale.limit_each(4)}
    lm, limit = resources.LLAMA[1], scale.limit

    def cut(semantics: AnswerSemantics) -> measures.Measure:
        step = steps.qa_step(resources.NQ, lm, prompt="in-context-ralm", semantics=semantics, limit=limit, **two)
        return measures.exact_matches(step)

    def joined(join: Joining) -> measures.Measure:
        return measures.exact_matches(
            steps.qa_step(resources.NQ, lm, answering=AnswerOptions(join=join), limit=limit, **ensemble, **shown)
        )

    def chosen(join: Joining, prompt: str | None = None) -> measures.Measure:
        return measures.choice_accuracy(
            steps.qa_step(resources.MMLU, lm, answering=AnswerOptions(join=join), prompt=prompt, **ensemble, **few)
        )

    return {
        "In-Context RALM's questions": (cut("paper"), cut("official")),
        "REPLUG's answers: tokens or answers are averaged": (joined("tokens"), joined("answers")),
        "MMLU: most likely letter or generated one": (chosen("tokens"), chosen("answers", "replug-choice-code")),
    }

"""In-Context RALM: Tables 1 (with Figure 2), 2, 3 and 5 and Figure 4, perplexity with BM25 and with reranking; Table 4
and Figure 8, open-domain questions with DPR's first passages in the prompt."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ralm.reading import ReadingOptions
from ralm.reading.concatenation import Concatenation
from ralm.recipes.measures import AnswerScore, CurveExactMatch, Per
from ralm.recipes.readings import DENSE_SEARCH, ICR_SEMANTICS, NO_FIGURES, Readings, wikipedia
from ralm.recipes.recipe import Cell, Figure, Order, Recipe, Scale, cells_of, orders_of
from ralm.recipes.resources import (
    DPR,
    DPR_QUESTIONS,
    GPT2,
    LLAMA,
    NEO,
    NQ,
    OPT,
    PILE_TEST,
    PILE_TRAIN,
    REALNEWS_DEV,
    REALNEWS_TRAIN,
    TRIVIA_QA,
    WIKIPEDIA,
    WIKITEXT_TEST,
    Resource,
)
from ralm.recipes.steps import Step, index_step, qa_step

_Published = dict[tuple[str, str], tuple[float, ...]]

_TABLE_1: Final[_Published] = {
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
_TABLE_2: Final[_Published] = {
    ("LLaMA-7B", "none"): (9.9,),
    ("LLaMA-7B", "BM25"): (8.8,),
    ("LLaMA-13B", "none"): (8.5,),
    ("LLaMA-13B", "BM25"): (7.6,),
    ("LLaMA-33B", "none"): (6.3,),
    ("LLaMA-33B", "BM25"): (6.1,),
}
_TABLE_3: Final = {
    "GPT-2 M": ((20.8, 20.8), (12.1, 12.0)),
    "GPT-2 L": ((17.7, 17.6), (10.7, 10.6)),
    "GPT-2 XL": ((16.2, 16.1), (9.9, 9.8)),
}
"""Ranked by GPT-2 S and by itself, on both texts."""
_TABLE_5: Final[_Published] = {
    ("GPT-Neo 1.3B", "none"): (17.5, 12.3),
    ("GPT-Neo 1.3B", "BM25"): (14.6, 9.9),
    ("GPT-Neo 2.7B", "none"): (15.1, 11.0),
    ("GPT-Neo 2.7B", "BM25"): (12.8, 9.0),
    ("GPT-J 6B", "none"): (11.6, 9.2),
    ("GPT-J 6B", "BM25"): (10.0, 7.7),
}
_FIRST_PASSAGE: Final = ("none", "BM25")
_REALNEWS: Final = "RealNews is C4's part that is like it."


@dataclass(frozen=True, slots=True)
class _Text:
    """A text with the index of its corpus, and its column."""

    column: str
    text: Resource
    index: Step
    per: Per = "token"


def _texts() -> tuple[_Text, ...]:
    pile = zip(("ArXiv", "Stack Exchange", "FreeLaw"), PILE_TEST, PILE_TRAIN, strict=True)
    return (
        _Text("WikiText-103", WIKITEXT_TEST, wikipedia(), "word"),
        _Text("RealNews", REALNEWS_DEV, index_step(REALNEWS_TRAIN)),
        *(_Text(column, text, index_step(corpus)) for column, text, corpus in pile),
    )


def icr_table_1(scale: Scale) -> Recipe:
    """Five corpora, with BM25, zero-shot and predictive reranking."""
    cells, orders = _compared(scale, _texts(), GPT2, ("none", "BM25", "zero-shot", "predictive"), _TABLE_1)
    return Recipe(
        name="in-context-ralm/table-1",
        paper="In-Context RALM, Table 1 and Figure 2",
        about="Perplexity of GPT-2 on five corpora: without retrieval, with BM25's first passage, and with the best of "
        "16 by zero-shot and by predictive reranking.",
        cells=cells,
        orders=orders,
        figure=Figure(kind="bars", over="reading"),
        differs=(
            ICR_SEMANTICS,
            f"{_REALNEWS} ArXiv, Stack Exchange and FreeLaw are those of the Pile without the parts under copyright.",
            "Which 300,000 examples the reranker learned from is not published. Here they are drawn from all of "
            "WikiText-103's training set, 16 in a row, with prefixes of 128 to 252 tokens; candidates that share 13 "
            "words with the text at the continuation are left out.",
        ),
    )


def icr_table_2(scale: Scale) -> Recipe:
    """LLaMA on WikiText-103."""
    cells, orders = _compared(scale, _texts()[:1], LLAMA, _FIRST_PASSAGE, _TABLE_2)
    return Recipe(
        name="in-context-ralm/table-2",
        paper="In-Context RALM, Table 2",
        about="Word perplexity of LLaMA on WikiText-103, without retrieval and with BM25's first passage.",
        cells=cells,
        orders=orders,
        differs=(ICR_SEMANTICS, "LLaMA's weights are copies on the hub, under Meta's licence."),
    )


def icr_table_3(scale: Scale) -> Recipe:
    """A smaller model chooses the passage for a larger one."""
    texts = [(_heading(one), _readings(scale, one, GPT2)) for one in _texts()[:2]]
    cells = [
        Cell(model=lm.label, how=how, column=column, measure=readings.zero_shot(lm, ranker), published=published[place])
        for lm in GPT2[1:]
        for place, (how, ranker) in enumerate((("ranked by GPT-2 S", GPT2[0]), ("ranked by itself", None)))
        for (column, readings), published in zip(texts, _TABLE_3[lm.label], strict=True)
    ]
    return Recipe(
        name="in-context-ralm/table-3",
        paper="In-Context RALM, Table 3",
        about="Zero-shot reranking by GPT-2 S against reranking by the model that reads.",
        cells=tuple(cells),
        differs=(ICR_SEMANTICS, _REALNEWS),
    )


def icr_table_5(scale: Scale) -> Recipe:
    """GPT-Neo and GPT-J on WikiText-103 and RealNews."""
    cells, orders = _compared(scale, _texts()[:2], NEO, _FIRST_PASSAGE, _TABLE_5)
    return Recipe(
        name="in-context-ralm/table-5",
        paper="In-Context RALM, Table 5",
        about="Perplexity of GPT-Neo and GPT-J on WikiText-103 and RealNews, without retrieval and with BM25's first "
        "passage.",
        cells=cells,
        orders=orders,
        differs=(ICR_SEMANTICS, _REALNEWS),
    )


def icr_figure_4(scale: Scale) -> Recipe:
    """OPT on WikiText-103 and RealNews, by its size."""
    cells, orders = _compared(scale, _texts()[:2], OPT, _FIRST_PASSAGE, {})
    sizes = {lm.label: lm.parameters / 1e9 for lm in OPT}
    return Recipe(
        name="in-context-ralm/figure-4",
        paper="In-Context RALM, Figure 4",
        about="Perplexity of OPT by its size, on WikiText-103 and RealNews, without retrieval and with BM25's first "
        f"passage. {NO_FIGURES}",
        cells=tuple(replace(one, at=sizes[one.model], line="OPT") for one in cells),
        orders=orders,
        figure=Figure(kind="lines", over="parameters, billions", logarithmic=True),
        differs=(ICR_SEMANTICS, _REALNEWS),
    )


def _compared(
    scale: Scale, texts: Sequence[_Text], models: Sequence[Resource], hows: Sequence[str], published: _Published
) -> tuple[tuple[Cell, ...], tuple[Order, ...]]:
    """A cell for each text, model and way of reading, and the orders among the ways; the predictive reranker was
    trained for WikiText-103 alone."""
    ways = {
        "none": Readings.plain,
        "BM25": Readings.bm25,
        "zero-shot": Readings.zero_shot,
        "predictive": Readings.predictive,
    }
    cells, orders = list[Cell](), list[Order]()
    for place, text in enumerate(texts):
        readings = _readings(scale, text, models)
        read = [how for how in hows if how != "predictive" or text.per == "word"]
        for lm in models:
            measured = {how: ways[how](readings, lm) for how in read}
            figures = [published.get((lm.label, how), ()) for how in read]
            known = [figure[place] if place < len(figure) else None for figure in figures]
            cells += cells_of(lm.label, _heading(text), measured, known)
            pairs = (("BM25", "none"), ("zero-shot", "BM25"), ("predictive", "zero-shot"))
            orders += orders_of(f"{text.column}, {lm.label}", measured, *pairs)
    return tuple(cells), tuple(orders)


def _readings(scale: Scale, text: _Text, models: Sequence[Resource]) -> Readings:
    return Readings(scale=scale, text=text.text, index=text.index, tokenizer=models[0], per=text.per)


def _heading(text: _Text) -> str:
    return f"{text.column}, {text.per} perplexity"


_TWO: Final = ReadingOptions(reader="concatenation", concatenation=Concatenation(documents=2))
_FIRST_PASSAGE_ANSWERS: Final = ReadingOptions()
_TABLE_4: Final = {
    "LLaMA-7B": ((10.3, 28.0), (47.5, 56.0)),
    "LLaMA-13B": ((12.0, 31.0), (54.8, 60.1)),
    "LLaMA-33B": ((13.7, 32.3), (58.3, 62.7)),
}
"""Closed book and with passages, on both sets of questions."""
_QUESTIONS: Final = {"NQ": NQ, "TriviaQA": TRIVIA_QA}
_NUMBERS: Final = (0, 1, 2, 3, 4, 5)
_CODE: Final = "Prompts are cut as in the published code (`--semantics official`), which made the paper's figures."


def icr_table_4(scale: Scale) -> Recipe:
    """LLaMA with two of DPR's passages."""
    cells, orders = list[Cell](), list[Order]()
    for lm in LLAMA:
        for (column, questions), published in zip(_QUESTIONS.items(), _TABLE_4[lm.label], strict=True):
            steps = {
                "none": qa_step(questions, lm, semantics="official", limit=scale.limit),
                "DPR": _with_passages(scale, questions, lm, _TWO),
            }
            exact = {how: AnswerScore(step) for how, step in steps.items()}
            likely = {how: AnswerScore(step, "gold_log_prob") for how, step in steps.items()}
            cells += cells_of(lm.label, f"{column}, exact match, %", exact, published)
            cells += cells_of(lm.label, f"{column}, log-probability of a token of the answer", likely)
            orders += [
                Order(better=measured["DPR"], worse=measured["none"], text=f"{column}, {lm.label}: {text}")
                for measured, text in (
                    (exact, "exact match with passages > without"),
                    (likely, "right answer more likely with passages"),
                )
            ]
    return Recipe(
        name="in-context-ralm/table-4",
        paper="In-Context RALM, Table 4",
        about="Questions that LLaMA answers without demonstrations, closed book and with two of DPR's passages. The "
        "log-probability of the right answer is ours: it shows what passages do for models that rarely answer.",
        cells=tuple(cells),
        orders=tuple(orders),
        differs=(_CODE, "TriviaQA's test answers are not public; this is the development set."),
    )


def icr_figure_8(scale: Scale) -> Recipe:
    """Questions by the number of passages."""
    numbers = (0, 1, 2) if scale.small else _NUMBERS
    cells = [
        Cell(model=lm.label, how="DPR", column=f"{column}, exact match, %", measure=CurveExactMatch(step, at), at=at)
        for column, questions in _QUESTIONS.items()
        for lm in LLAMA
        for step in (_with_passages(scale, questions, lm, _FIRST_PASSAGE_ANSWERS, numbers),)
        for at in numbers
    ]
    return Recipe(
        name="in-context-ralm/figure-8",
        paper="In-Context RALM, Figure 8",
        about=f"Questions that LLaMA answers, by the number of DPR's passages in the prompt. {NO_FIGURES}",
        cells=tuple(cells),
        figure=Figure(kind="lines", over="passages in the prompt"),
        differs=(_CODE, "The paper takes development sets; NQ's here is what papers call its test set."),
    )


def _with_passages(
    scale: Scale, questions: Resource, lm: Resource, reading: ReadingOptions, numbers: tuple[int, ...] = ()
) -> Step:
    """Answers with DPR's passages of Wikipedia."""
    return qa_step(
        questions,
        lm,
        index=index_step(WIKIPEDIA, encoder=DPR, query_encoder=DPR_QUESTIONS),
        retrieval=DENSE_SEARCH,
        reading=reading,
        prompt="in-context-ralm",
        semantics="official",
        numbers=numbers,
        limit=scale.limit,
    )

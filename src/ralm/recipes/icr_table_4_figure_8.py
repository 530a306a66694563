"""In-Context RALM, Table 4 and Figure 8: open-domain questions with DPR's first passages in the prompt."""

from typing import Final

from ralm.reading import ReadingOptions
from ralm.reading.concatenation import Concatenation
from ralm.recipes.measures import AnswerScore, CurveExactMatch
from ralm.recipes.readings import DENSE_SEARCH, NO_FIGURES
from ralm.recipes.recipe import Cell, Figure, Order, Recipe, Scale, cells_of
from ralm.recipes.resources import DPR, DPR_QUESTIONS, LLAMA, NQ, TRIVIA_QA, WIKIPEDIA, Resource
from ralm.recipes.steps import Step, index_step, qa_step

_TWO: Final = ReadingOptions(reader="concatenation", concatenation=Concatenation(documents=2))
_FIRST_PASSAGE: Final = ReadingOptions()
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
        for step in (_with_passages(scale, questions, lm, _FIRST_PASSAGE, numbers),)
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

"""In-Context RALM, Table 4 and Figure 8: open-domain questions with DPR's first passages in the prompt."""

from typing import Final

from ralm.reading import ReadingOptions
from ralm.reading.concatenation import Concatenation
from ralm.recipes.measures import AnswerScore, CurveExactMatch
from ralm.recipes.recipe import Cell, Figure, Order, Recipe, Scale
from ralm.recipes.resources import DPR, DPR_QUESTIONS, LLAMA, NQ, TRIVIA_QA, WIKIPEDIA, Resource
from ralm.recipes.steps import Step, index_step, qa_step
from ralm.retrieval.dense.options import EncoderOptions
from ralm.retrieval.retriever import RetrieverOptions

_DENSE: Final = RetrieverOptions(retriever="dense")
_TWO: Final = ReadingOptions(reader="concatenation", concatenation=Concatenation(documents=2))
_PUBLISHED: Final = {
    "LLaMA-7B": ((10.3, 47.5), (28.0, 56.0)),
    "LLaMA-13B": ((12.0, 54.8), (31.0, 60.1)),
    "LLaMA-33B": ((13.7, 58.3), (32.3, 62.7)),
}
_QUESTIONS: Final = (("NQ", NQ), ("TriviaQA", TRIVIA_QA))
_NUMBERS: Final = (0, 1, 2, 3, 4, 5)
_PROMPT: Final = "in-context-ralm"
_CODE: Final = "Prompts are cut as in the published code (`--semantics official`), which made the paper's figures."


def dpr_index() -> Step:
    """DPR's passages of Wikipedia with the vectors of its encoder of passages, and its encoder of questions."""
    return index_step(WIKIPEDIA, encoder=DPR, query_encoder=DPR_QUESTIONS, encoding=EncoderOptions(encoder=""))


def icr_table_4(scale: Scale) -> Recipe:
    """LLaMA with two of DPR's passages."""
    cells, orders = list[Cell](), list[Order]()
    for (name, published), lm in zip(_PUBLISHED.items(), LLAMA, strict=True):
        for place, (column, questions) in enumerate(_QUESTIONS):
            closed, opened = (AnswerScore(_asked(scale, questions, lm, documents)) for documents in (0, 2))
            cells += [
                Cell(model=name, how=how, column=f"{column}, exact match, %", measure=one, published=values[place])
                for how, one, values in zip(("none", "DPR"), (closed, opened), published, strict=True)
            ]
            likely = [AnswerScore(one.step, "gold_log_prob") for one in (closed, opened)]
            cells += [
                Cell(model=name, how=how, column=f"{column}, log-probability of a token of the answer", measure=one)
                for how, one in zip(("none", "DPR"), likely, strict=True)
            ]
            orders += [
                Order(better=opened, worse=closed, said=f"{column}, {name}: exact match with passages > without"),
                Order(better=likely[1], worse=likely[0], said=f"{column}, {name}: right answer likelier with passages"),
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


def _asked(scale: Scale, questions: Resource, lm: Resource, documents: int) -> Step:
    if not documents:
        return qa_step(questions, lm, semantics="official", limit=scale.limit)
    return qa_step(
        questions,
        lm,
        index=dpr_index(),
        retrieval=_DENSE,
        reading=_TWO,
        prompt=_PROMPT,
        semantics="official",
        limit=scale.limit,
    )


def icr_figure_8(scale: Scale) -> Recipe:
    """Questions by the number of passages."""
    cells = []
    numbers = (0, 1, 2) if scale.small else _NUMBERS
    for column, questions in _QUESTIONS:
        for (name, _), lm in zip(_PUBLISHED.items(), LLAMA, strict=True):
            step = qa_step(
                questions,
                lm,
                index=dpr_index(),
                retrieval=_DENSE,
                prompt=_PROMPT,
                semantics="official",
                numbers=numbers,
                limit=scale.limit,
            )
            cells += [
                Cell(
                    model=name,
                    how="DPR",
                    column=f"{column}, exact match, %",
                    measure=CurveExactMatch(step, one),
                    at=one,
                )
                for one in numbers
            ]
    return Recipe(
        name="in-context-ralm/figure-8",
        paper="In-Context RALM, Figure 8",
        about="Questions that LLaMA answers, by the number of DPR's passages in the prompt. The paper shows a plot "
        "without figures.",
        cells=tuple(cells),
        figure=Figure(kind="lines", over="passages in the prompt"),
        differs=(
            _CODE,
            "The paper takes development sets; NQ's here is what papers call its test set.",
        ),
    )

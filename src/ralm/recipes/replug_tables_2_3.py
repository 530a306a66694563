"""REPLUG, Tables 2 and 3: MMLU and open-domain questions, with an ensemble over ten passages."""

from typing import Final

from ralm.reading import ReadingOptions
from ralm.reading.ensemble import Ensemble
from ralm.recipes.measures import AnswerScore, ChoiceAccuracy
from ralm.recipes.readings import (
    REPLUG_DENSE,
    REPLUG_DOCUMENTS,
    REPLUG_ENCODING,
    REPLUG_SUPERVISION,
    trained_retriever,
)
from ralm.recipes.recipe import Cell, Order, Recipe, Scale
from ralm.recipes.resources import (
    CONTRIEVER,
    LLAMA,
    MMLU,
    MMLU_DEV,
    NQ,
    NQ_TRAIN,
    TRIVIA_QA,
    TRIVIA_QA_TRAIN,
    WIKIPEDIA,
    Resource,
)
from ralm.recipes.steps import Step, choice_step, index_step, qa_step

_LM: Final = LLAMA[1]
_NAME: Final = "LLaMA-13B"
_HOWS: Final = ("none", "REPLUG", "REPLUG LSR")
_CATEGORIES: Final = {"Humanities": "humanities", "Social.": "social sciences", "STEM": "STEM", "Other": "other"}
_CODEX: Final = {
    "none": (74.2, 76.9, 57.8, 70.1, 68.3),
    "REPLUG": (76.0, 79.7, 58.8, 72.1, 71.4),
    "REPLUG LSR": (76.5, 79.9, 58.9, 73.2, 71.8),
}
_LLAMA_ALL: Final = {"none": 55.6, "REPLUG": 58.8, "REPLUG LSR": 59.3}
_LLAMA_QA: Final = {"none": (29.0, 69.6), "REPLUG": (36.1, 73.3), "REPLUG LSR": (37.2, 74.1)}
_CODEX_QA: Final = {"none": (40.6, 73.6), "REPLUG": (44.7, 76.8), "REPLUG LSR": (45.5, 77.3)}
_GONE: Final = "no longer offered"
_SHOTS: Final = 16
_CHOICE_SHOTS: Final = 5


def _indexes(scale: Scale) -> dict[str, Step | None]:
    """Wikipedia as Contriever sees it, before and after LSR; None without passages."""
    return {
        "none": None,
        "REPLUG": index_step(WIKIPEDIA, encoder=CONTRIEVER, encoding=REPLUG_ENCODING),
        "REPLUG LSR": index_step(WIKIPEDIA, encoder=trained_retriever(scale), encoding=REPLUG_ENCODING),
    }


def _ensemble(scale: Scale) -> ReadingOptions:
    return ReadingOptions(reader="ensemble", ensemble=Ensemble(documents=scale.documents(REPLUG_DOCUMENTS)))


def replug_table_2(scale: Scale) -> Recipe:
    """MMLU by category."""
    steps = {
        how: choice_step(
            MMLU,
            _LM,
            demonstrations=MMLU_DEV,
            shots=scale.shots(_CHOICE_SHOTS),
            index=own,
            retrieval=REPLUG_DENSE if own else None,
            reading=_ensemble(scale) if own else None,
            limit=scale.limit_each(len(_CATEGORIES)),
        )
        for how, own in _indexes(scale).items()
    }
    columns = {**_CATEGORIES, "All": None}
    cells = [
        Cell(
            model=_NAME,
            how=how,
            column=f"{column}, accuracy, %",
            measure=ChoiceAccuracy(step, category),
            published=_LLAMA_ALL[how] if category is None else None,
        )
        for how, step in steps.items()
        for column, category in columns.items()
    ]
    cells += [
        Cell(model="Codex", how=how, column=f"{column}, accuracy, %", measure=None, published=value, why_not=_GONE)
        for how, values in _CODEX.items()
        for column, value in zip(columns, values, strict=True)
    ]
    return Recipe(
        name="replug/table-2",
        paper="REPLUG, Table 2",
        about="MMLU with five demonstrations of the subject, each with its own first passage, and the question with "
        "each of ten passages of Wikipedia; the letters' probabilities are averaged.",
        cells=tuple(cells),
        orders=(
            Order(better=ChoiceAccuracy(steps["REPLUG"]), worse=ChoiceAccuracy(steps["none"]), said="REPLUG > none"),
            Order(
                better=ChoiceAccuracy(steps["REPLUG LSR"]),
                worse=ChoiceAccuracy(steps["REPLUG"]),
                said="REPLUG LSR > REPLUG",
            ),
        ),
        differs=(
            REPLUG_SUPERVISION,
            "All is the share of right answers; the paper's caption has the average of the categories.",
            "Codex is no longer offered; its figures are the paper's alone.",
        ),
    )


def replug_table_3(scale: Scale) -> Recipe:
    """Natural Questions and TriviaQA."""
    cells, orders = list[Cell](), list[Order]()
    sets = (("NQ", NQ, NQ_TRAIN), ("TriviaQA", TRIVIA_QA, TRIVIA_QA_TRAIN))
    for place, (column, questions, shown) in enumerate(sets):
        steps = {how: _asked(scale, questions, shown, own) for how, own in _indexes(scale).items()}
        measured = {how: AnswerScore(step) for how, step in steps.items()}
        likely = {how: AnswerScore(step, "gold_log_prob") for how, step in steps.items()}
        cells += [
            Cell(
                model=_NAME,
                how=how,
                column=f"{column}, exact match, %",
                measure=one,
                published=_LLAMA_QA[how][place],
            )
            for how, one in measured.items()
        ]
        cells += [
            Cell(model=_NAME, how=how, column=f"{column}, log-probability of a token of the answer", measure=one)
            for how, one in likely.items()
        ]
        orders += [
            Order(better=measured["REPLUG"], worse=measured["none"], said=f"{column}: REPLUG > none"),
            Order(better=measured["REPLUG LSR"], worse=measured["REPLUG"], said=f"{column}: REPLUG LSR > REPLUG"),
            Order(better=likely["REPLUG"], worse=likely["none"], said=f"{column}: right answer likelier with REPLUG"),
        ]
        cells += [
            Cell(
                model="Codex",
                how=how,
                column=f"{column}, exact match, %",
                measure=None,
                published=_CODEX_QA[how][place],
                why_not=_GONE,
            )
            for how in _HOWS
        ]
    return Recipe(
        name="replug/table-3",
        paper="REPLUG, Table 3",
        about="Questions with 16 demonstrations, each with its own first passage, and the question with each of ten "
        "passages of Wikipedia; the distributions of every token are averaged. The log-probability of the right answer "
        "is ours.",
        cells=tuple(cells),
        orders=tuple(orders),
        differs=(
            REPLUG_SUPERVISION,
            "Demonstrations are the first 16 of the training sets; the paper does not say which it takes.",
            "Codex is no longer offered; its figures are the paper's alone.",
        ),
    )


def _asked(scale: Scale, questions: Resource, shown: Resource, own: Step | None) -> Step:
    return qa_step(
        questions,
        _LM,
        index=own,
        retrieval=REPLUG_DENSE if own else None,
        reading=_ensemble(scale) if own else None,
        demonstrations=shown,
        shots=scale.shots(_SHOTS),
        prompt="replug",
        limit=scale.limit,
    )

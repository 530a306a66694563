"""REPLUG, Tables 2 and 3: MMLU and open-domain questions, with an ensemble over ten passages."""

from typing import Final

from ralm.recipes.measures import AnswerScore, ChoiceAccuracy
from ralm.recipes.readings import DENSE_SEARCH, REPLUG_DOCUMENTS, REPLUG_SUPERVISION, ensemble_of, trained_retriever
from ralm.recipes.recipe import Cell, Order, Recipe, Scale, cells_of, discontinued, orders_of
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
)
from ralm.recipes.steps import Step, choice_step, index_step, qa_step

_LM: Final = LLAMA[1]
_CATEGORIES: Final = {
    "Humanities": "humanities",
    "Social.": "social sciences",
    "STEM": "STEM",
    "Other": "other",
    "All": None,
}
_MMLU_ALL: Final = {"none": 55.6, "REPLUG": 58.8, "REPLUG LSR": 59.3}
_MMLU_CODEX: Final = {
    "none": (74.2, 76.9, 57.8, 70.1, 68.3),
    "REPLUG": (76.0, 79.7, 58.8, 72.1, 71.4),
    "REPLUG LSR": (76.5, 79.9, 58.9, 73.2, 71.8),
}
_SETS: Final = {"NQ": (NQ, NQ_TRAIN), "TriviaQA": (TRIVIA_QA, TRIVIA_QA_TRAIN)}
_QA: Final = {"NQ": (29.0, 36.1, 37.2), "TriviaQA": (69.6, 73.3, 74.1)}
_QA_CODEX: Final = {
    "NQ": {"none": 40.6, "REPLUG": 44.7, "REPLUG LSR": 45.5},
    "TriviaQA": {"none": 73.6, "REPLUG": 76.8, "REPLUG LSR": 77.3},
}
_CODEX_GONE: Final = "Codex is no longer offered; its figures are the paper's alone."
_ORDERS: Final = (("REPLUG", "none"), ("REPLUG LSR", "REPLUG"))
_SHOTS: Final = 16
_CHOICE_SHOTS: Final = 5


def _indexes(scale: Scale) -> dict[str, Step | None]:
    """Wikipedia as Contriever sees it, before and after LSR; None without passages."""
    return {
        "none": None,
        "REPLUG": index_step(WIKIPEDIA, encoder=CONTRIEVER),
        "REPLUG LSR": index_step(WIKIPEDIA, encoder=trained_retriever(scale)),
    }


def replug_table_2(scale: Scale) -> Recipe:
    """MMLU by category."""
    reading = ensemble_of(scale.documents(REPLUG_DOCUMENTS))
    steps = {
        how: choice_step(
            MMLU,
            _LM,
            demonstrations=MMLU_DEV,
            shots=scale.shots(_CHOICE_SHOTS),
            index=index,
            retrieval=DENSE_SEARCH,
            reading=reading,
            limit=scale.limit_each(4),
        )
        for how, index in _indexes(scale).items()
    }
    cells = list[Cell]()
    for how, step in steps.items():
        for column, category in _CATEGORIES.items():
            published = _MMLU_ALL[how] if category is None else None
            measured = {how: ChoiceAccuracy(step, category)}
            cells += cells_of(_LM.label, f"{column}, accuracy, %", measured, [published])
    for how, values in _MMLU_CODEX.items():
        for column, value in zip(_CATEGORIES, values, strict=True):
            cells += discontinued("Codex", f"{column}, accuracy, %", {how: value})
    return Recipe(
        name="replug/table-2",
        paper="REPLUG, Table 2",
        about="MMLU with five demonstrations of the subject, each with its own first passage, and the question with "
        "each of ten passages of Wikipedia; the letters' probabilities are averaged.",
        cells=tuple(cells),
        orders=tuple(orders_of("", {how: ChoiceAccuracy(step) for how, step in steps.items()}, *_ORDERS)),
        differs=(
            REPLUG_SUPERVISION,
            "All is the share of right answers; the paper's caption has the average of the categories.",
            _CODEX_GONE,
        ),
    )


def replug_table_3(scale: Scale) -> Recipe:
    """Natural Questions and TriviaQA."""
    reading = ensemble_of(scale.documents(REPLUG_DOCUMENTS))
    cells, orders = list[Cell](), list[Order]()
    for column, (questions, demonstrations) in _SETS.items():
        steps = {
            how: qa_step(
                questions,
                _LM,
                index=index,
                retrieval=DENSE_SEARCH,
                reading=reading,
                demonstrations=demonstrations,
                shots=scale.shots(_SHOTS),
                prompt="replug",
                limit=scale.limit,
            )
            for how, index in _indexes(scale).items()
        }
        exact = {how: AnswerScore(step) for how, step in steps.items()}
        likely = {how: AnswerScore(step, "gold_log_prob") for how, step in steps.items()}
        cells += cells_of(_LM.label, f"{column}, exact match, %", exact, _QA[column])
        cells += cells_of(_LM.label, f"{column}, log-probability of a token of the answer", likely)
        cells += discontinued("Codex", f"{column}, exact match, %", _QA_CODEX[column])
        text = f"{column}: right answer more likely with REPLUG"
        orders += [
            *orders_of(column, exact, *_ORDERS),
            Order(better=likely["REPLUG"], worse=likely["none"], text=text),
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
            _CODEX_GONE,
        ),
    )

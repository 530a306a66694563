"""REPLUG: Table 1 and Figure 4, bits per byte on the Pile before and after LSR and by the number of documents; Tables 2
and 3, MMLU and open-domain questions with an ensemble over ten passages."""

from typing import Final

from ralm.recipes.measures import AnswerScore, ChoiceAccuracy, Measure
from ralm.recipes.readings import (
    DENSE_SEARCH,
    REPLUG_DOCUMENTS,
    REPLUG_PLAN,
    REPLUG_SUPERVISION,
    REPLUG_WINDOWS,
    Readings,
    ensemble_of,
    pile_index,
    trained_retriever,
)
from ralm.recipes.recipe import Cell, Figure, Order, Recipe, Scale, cells_of, discontinued, orders_of
from ralm.recipes.resources import (
    CONTRIEVER,
    GPT2,
    LLAMA,
    MMLU,
    MMLU_DEV,
    NEO,
    NQ,
    NQ_TRAIN,
    PILE_ALL_TEST,
    TRIVIA_QA,
    TRIVIA_QA_TRAIN,
    WIKIPEDIA,
)
from ralm.recipes.steps import Step, choice_step, index_step, qa_step
from ralm.retrieval.retriever import RetrieverOptions

_COLUMN: Final = "The Pile, bits per byte"
_HOWS: Final = ("none", "REPLUG", "REPLUG LSR")
_TABLE_1: Final = {
    "GPT-2 S": (1.33, 1.26, 1.21),
    "GPT-2 M": (1.20, 1.14, 1.11),
    "GPT-2 L": (1.19, 1.15, 1.09),
    "GPT-2 XL": (1.16, 1.09, 1.07),
}
_GPT3: Final = {
    "GPT-3 Ada": (1.05, 0.98, 0.96),
    "GPT-3 Babbage": (0.95, 0.90, 0.88),
    "GPT-3 Curie": (0.88, 0.85, 0.82),
    "GPT-3 Davinci": (0.80, 0.77, 0.75),
}
_NUMBERS: Final = (1, 2, 4, 6, 8, 10)
_FEW: Final = (1, 2, 4)
_RANDOM: Final = RetrieverOptions(retriever="random")
_CORPUS: Final = (
    "The Pile's own copies are no longer public; this is the Pile without the parts under copyright, and the beginning "
    "of its test data. Passages of a training text's own document are left out as candidates; the paper samples "
    "passages and training texts from different documents."
)


def replug_table_1(scale: Scale) -> Recipe:
    """GPT-2 without passages, with REPLUG and with REPLUG LSR."""
    readings = Readings(scale=scale, text=PILE_ALL_TEST, tokenizer=GPT2[0], per="byte", plan=REPLUG_PLAN)
    cells, orders = list[Cell](), list[Order]()
    for lm in GPT2:
        measured = {
            "none": readings.plain(lm),
            "REPLUG": readings.ensemble(lm, pile_index()),
            "REPLUG LSR": readings.ensemble(lm, pile_index(), vectors=trained_retriever(scale)),
        }
        cells += cells_of(lm.label, _COLUMN, measured, _TABLE_1[lm.label])
        orders += orders_of(lm.label, measured, ("REPLUG", "none"), ("REPLUG LSR", "REPLUG"))
    for model, published in _GPT3.items():
        cells += discontinued(model, _COLUMN, dict(zip(_HOWS, published, strict=True)))
    return Recipe(
        name="replug/table-1",
        paper="REPLUG, Table 1",
        about="Bits per byte of the Pile: without retrieval, with an ensemble over Contriever's first ten passages, "
        "and with Contriever trained by LSR.",
        cells=tuple(cells),
        orders=tuple(orders),
        differs=(REPLUG_WINDOWS, REPLUG_SUPERVISION, _CORPUS),
    )


def replug_figure_4(scale: Scale) -> Recipe:
    """Bits per byte by the number of documents: REPLUG, LSR and random passages."""
    lm, numbers = NEO[-1], _FEW if scale.small else _NUMBERS
    readings = Readings(scale=scale, text=PILE_ALL_TEST, tokenizer=lm, per="byte", plan=REPLUG_PLAN)
    few, most = numbers[0], numbers[-1]
    retrieval = {"random": _RANDOM, "REPLUG": DENSE_SEARCH, "REPLUG LSR": DENSE_SEARCH}
    lines: dict[str, dict[int, Measure]] = {
        how: {
            number: readings.ensemble(
                lm,
                pile_index(),
                documents=number,
                retrieved=most,
                retrieval=retrieval[how],
                vectors=trained_retriever(scale) if how == "REPLUG LSR" else None,
            )
            for number in numbers
        }
        for how in retrieval
    }
    none = readings.plain(lm)
    cells = cells_of(lm.label, _COLUMN, {"none": none})
    for how, line in lines.items():
        for number, measure in line.items():
            cells += cells_of(lm.label, _COLUMN, {how: measure}, at=number)
    own = lines["REPLUG"]
    return Recipe(
        name="replug/figure-4",
        paper="REPLUG, Figure 4",
        about="Bits per byte of the Pile by the number of documents in the ensemble. Random documents are the control: "
        "the gain is not that of averaging. The paper shows a plot of GPT-3 Curie without figures.",
        cells=tuple(cells),
        orders=(
            Order(better=own[most], worse=none, text=f"{most} documents < none"),
            Order(better=none, worse=lines["random"][most], text=f"none < {most} random documents"),
            Order(better=own[most], worse=own[few], text=f"{most} documents < {few}"),
        ),
        figure=Figure(kind="lines", over="documents"),
        differs=(
            REPLUG_WINDOWS,
            REPLUG_SUPERVISION,
            _CORPUS,
            "GPT-3 Curie is no longer offered; GPT-J 6B reads in its place.",
        ),
    )


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

"""REPLUG: Table 1, bits per byte on the Pile before and after LSR; Tables 2 and 3, MMLU and open-domain questions with
an ensemble over ten passages."""

from typing import Final

from ralm.recipes import measures, resources
from ralm.recipes.readings import (
    DENSE_SEARCH,
    REPLUG_PLAN,
    REPLUG_SUPERVISION,
    REPLUG_WINDOWS,
    TextReadings,
    ensemble_of,
    pile_index,
    trained_retriever,
)
from ralm.recipes.recipe import (
    REPLUG_DOCUMENTS,
    Entries,
    Order,
    Scale,
    cells_of,
    orders_of,
    published_only,
    recipe,
)
from ralm.recipes.steps import Step, index_step, qa_step

BITS_COLUMN: Final = "The Pile, bits per byte"
_GAIN_COLUMN: Final = "The Pile, gain, %"
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
_GAINS: Final = {
    "GPT-2 S": (5.3, 9.0),
    "GPT-2 M": (5.0, 7.5),
    "GPT-2 L": (3.4, 8.4),
    "GPT-2 XL": (6.0, 7.8),
    "GPT-3 Ada": (6.7, 8.6),
    "GPT-3 Babbage": (5.3, 7.4),
    "GPT-3 Curie": (3.4, 6.8),
    "GPT-3 Davinci": (3.8, 6.3),
}
"""The Gain % columns of Table 1, as printed."""
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
_MMLU_OTHERS: Final = {
    "PaLM": {"Humanities": 77.0, "Social.": 81.0, "STEM": 55.6, "Other": 69.6, "All": 69.3},
    "Flan-PaLM": {"All": 72.2},
    "Atlas": {"Humanities": 46.1, "Social.": 54.6, "STEM": 38.8, "Other": 52.8, "All": 47.9},
}
_QA_OTHERS: Final = {
    "Chinchilla": {"NQ": 35.5, "TriviaQA": 64.6},
    "PaLM": {"NQ": 39.6},
    "Atlas": {"NQ": 30.9, "TriviaQA": 74.5},
    "RETRO, full training data": {"NQ": 45.5},
    "R2-D2, full training data": {"NQ": 55.9, "TriviaQA": 69.9},
    "Atlas, full training data": {"NQ": 60.4, "TriviaQA": 79.8},
}
"""Rows of Tables 2 and 3 about models that REPLUG is compared with."""
_QA: Final = {
    "NQ": (resources.NQ, resources.NQ_TRAIN, (29.0, 36.1, 37.2), (40.6, 44.7, 45.5)),
    "TriviaQA": (resources.TRIVIA_QA, resources.TRIVIA_QA_TRAIN, (69.6, 73.3, 74.1), (73.6, 76.8, 77.3)),
}
"""The questions, the demonstrations, and the figures of LLaMA-13B and of Codex."""
PILE_COPY: Final = (
    "The Pile's own copies are no longer public; this is the Pile without the parts under copyright, and the beginning "
    "of its test data. Passages of a training text's own document are left out as candidates; the paper samples "
    "passages and training texts from different documents."
)
_GONE: Final = "no longer offered"
_COMPARED: Final = "published only"
_CODEX_GONE: Final = (
    "Codex is no longer offered; its figures are the paper's alone, as are those of other papers' models."
)
_LM: Final = resources.LLAMA[1]
_ORDERS: Final = (("REPLUG", "none"), ("REPLUG LSR", "REPLUG"))


@recipe("replug/table-1", differs=(REPLUG_WINDOWS, REPLUG_SUPERVISION, PILE_COPY))
def replug_table_1(scale: Scale) -> Entries:
    """Bits per byte of the Pile: without retrieval, with an ensemble over Contriever's first {documents} passages, and
    with Contriever trained by LSR. The gain is how much lower they are, in percent."""
    readings = TextReadings(
        scale=scale, text=resources.PILE_ALL_TEST, tokenizer=resources.GPT2[0], per="byte", plan=REPLUG_PLAN
    )
    for lm in resources.GPT2:
        measured = {
            "none": readings.plain(lm),
            "REPLUG": readings.ensemble(lm, pile_index()),
            "REPLUG LSR": readings.ensemble(lm, pile_index(), vectors=trained_retriever(scale)),
        }
        yield from cells_of(lm.label, BITS_COLUMN, measured, _TABLE_1[lm.label])
        gains = {how: measures.relative_gain(measured[how], measured["none"]) for how in _HOWS[1:]}
        yield from cells_of(lm.label, _GAIN_COLUMN, gains, _GAINS[lm.label])
        yield from orders_of(lm.label, measured, *_ORDERS)
    for model, published in _GPT3.items():
        yield from published_only(model, BITS_COLUMN, dict(zip(_HOWS, published, strict=True)), _GONE)
        yield from published_only(model, _GAIN_COLUMN, dict(zip(_HOWS[1:], _GAINS[model], strict=True)), _GONE)


@recipe(
    "replug/table-2",
    differs=(
        REPLUG_SUPERVISION,
        "All is the share of right answers; the paper's caption has the average of the categories.",
        _CODEX_GONE,
    ),
)
def replug_table_2(scale: Scale) -> Entries:
    """MMLU with {few_shots} demonstrations of the subject, each with its own first passage, and the question with each
    of {documents} passages of Wikipedia; the letters' probabilities are averaged."""
    steps = _answered(scale, resources.MMLU, resources.MMLU_DEV, shots=5, limit=scale.limit_each(4))
    for how, step in steps.items():
        for column, category in _CATEGORIES.items():
            published = _MMLU_ALL[how] if category is None else None
            measured = {how: measures.choice_accuracy(step, category)}
            yield from cells_of(_LM.label, f"{column}, accuracy, %", measured, [published])
    for how, values in _MMLU_CODEX.items():
        for column, value in zip(_CATEGORIES, values, strict=True):
            yield from published_only("Codex", f"{column}, accuracy, %", {how: value}, _GONE)
    for model, figures in _MMLU_OTHERS.items():
        for column, value in figures.items():
            yield from published_only(model, f"{column}, accuracy, %", {"as published": value}, _COMPARED)
    yield from orders_of("", {how: measures.choice_accuracy(step) for how, step in steps.items()}, *_ORDERS)


@recipe(
    "replug/table-3",
    differs=(
        REPLUG_SUPERVISION,
        "Demonstrations are the first {shots} of the training sets; the paper does not say which it takes.",
        _CODEX_GONE,
    ),
)
def replug_table_3(scale: Scale) -> Entries:
    """Questions with {shots} demonstrations, each with its own first passage, and the question with each of {documents}
    passages of Wikipedia; the distributions of every token are averaged. The log-probability of the right answer is
    ours."""
    for column, (questions, demonstrations, published, of_codex) in _QA.items():
        steps = _answered(scale, questions, demonstrations, shots=16, prompt="replug", limit=scale.limit)
        exact = {how: measures.exact_matches(step) for how, step in steps.items()}
        likely = {how: measures.gold_log_probs_of(step) for how, step in steps.items()}
        yield from cells_of(_LM.label, f"{column}, exact match, %", exact, published)
        yield from cells_of(_LM.label, f"{column}, log-probability of a token of the answer", likely)
        codex = dict(zip(_HOWS, of_codex, strict=True))
        yield from published_only("Codex", f"{column}, exact match, %", codex, _GONE)
        for model, figures in _QA_OTHERS.items():
            others = {"as published": figures[column]} if column in figures else {}
            yield from published_only(model, f"{column}, exact match, %", others, _COMPARED)
        yield from orders_of(column, exact, *_ORDERS)
        yield Order(likely["REPLUG"], likely["none"], f"{column}: right answer more likely with REPLUG")


def _answered(
    scale: Scale,
    questions: resources.Resource,
    demonstrations: resources.Resource,
    *,
    shots: int,
    limit: int | None,
    prompt: str | None = None,
) -> dict[str, Step]:
    """Answers with ten passages of Wikipedia as Contriever finds them, before and after LSR, and without passages."""
    indexes = {
        "none": None,
        "REPLUG": index_step(resources.WIKIPEDIA, encoder=resources.CONTRIEVER),
        "REPLUG LSR": index_step(resources.WIKIPEDIA, encoder=trained_retriever(scale)),
    }
    return {
        how: qa_step(
            questions,
            _LM,
            index=index,
            retrieval=DENSE_SEARCH,
            reading=ensemble_of(scale.documents(REPLUG_DOCUMENTS)),
            demonstrations=demonstrations,
            shots=scale.shots(shots),
            prompt=prompt,
            limit=limit,
        )
        for how, index in indexes.items()
    }

"""Options and hits: declared once, with bounds that an error names in one sentence with the option or the part."""

import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

import numpy as np
import pytest
from pydantic import JsonValue

from ralm.cli.process import with_flags
from ralm.corpus.decontamination import Decontamination
from ralm.corpus.splitting import Splitting
from ralm.errors import PartError, UsageError
from ralm.lm.api.endpoint import ApiOptions
from ralm.lm.registry import ModelOptions
from ralm.options import annotation, declared, without_none
from ralm.reading.mixture import Contrast, PosteriorWeights
from ralm.reading.plan import PlanOptions
from ralm.reading.readers import Concatenation, Ensemble
from ralm.reading.sampling import GenerationOptions
from ralm.recipes.catalogue import RecipeFolder, recipe_named
from ralm.records import Hits
from ralm.reranking import PredictiveOptions, ZeroShotOptions
from ralm.reranking.lexical import Lexical
from ralm.reranking.oracle import RandomChoice
from ralm.retrieval.bm25.formula import BM25Options, BuildOptions
from ralm.retrieval.dense.options import DenseSearchOptions, EncoderOptions, VectorOptions
from ralm.retrieval.hybrid import FusionOptions
from ralm.retrieval.random import RandomRetriever
from ralm.retrieval.retriever import RetrieverOptions
from ralm.training.options import QueryEncoderOptions, TrainingOptions
from ralm.validation import retrieve_checked
from tests.cli.program import ralm

RECORDS: list[Any] = [
    ApiOptions,
    BM25Options,
    BuildOptions,
    Concatenation,
    Contrast,
    DenseSearchOptions,
    EncoderOptions,
    Ensemble,
    FusionOptions,
    GenerationOptions,
    ModelOptions,
    PlanOptions,
    PosteriorWeights,
    PredictiveOptions,
    QueryEncoderOptions,
    RandomChoice,
    TrainingOptions,
    ZeroShotOptions,
    Lexical,
    RetrieverOptions,
    Splitting,
    VectorOptions,
]
NUMBERS = [
    (record, one.name, without_none(one.kind) is float)
    for record in RECORDS
    for one in declared(record)
    if without_none(one.kind) in (int, float)
]


def made(record: Any, **given: object) -> object:
    needed = {one.name: "x" for one in fields(record) if one.default is one.default_factory is MISSING}
    return record(**needed | given)


def test_the_numbers_of_all_records_are_declared() -> None:
    kinds = {(record, one.name): without_none(annotation(one.type)[0]) for record in RECORDS for one in fields(record)}
    assert [(record, name) for record, name, _ in NUMBERS] == [
        one for one, kind in kinds.items() if kind in (int, float)
    ]


@pytest.mark.parametrize(("record", "name", "real"), NUMBERS)
def test_extremes_of_an_option(record: Any, name: str, real: bool) -> None:
    worst = [math.nan, math.inf, -math.inf, -1.0, 1e308] if real else [-(2**63), -1, 2**63, 10**30]
    for value in worst:
        with pytest.raises(UsageError, match=r"must be .*, not .*\.$"):
            made(record, **{name: value})


def test_extremes_of_arguments() -> None:
    for number in (-1, 2**64):
        with pytest.raises(UsageError, match="must be at"):
            RandomRetriever(3, seed=number)
        with pytest.raises(UsageError, match="must be at"):
            Decontamination.of(ngram=number)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PlanOptions(max_length=0), "`max_length` must be at least 1, not 0."),
        (lambda: GenerationOptions(max_length=0), "`max_length` must be at least 1, not 0."),
        (lambda: PlanOptions(stride=2**31), "`stride` must be at most 2,147,483,647, not 2147483648."),
        (lambda: Ensemble(documents=0), "`documents` must be at least 1, not 0."),
        (lambda: RandomChoice(seed=-1), "`seed` must be at least 0, not -1."),
        (lambda: BuildOptions(megabytes=1e-300), "`megabytes` must be at least 1 and at most 1.04858e+06, not 1e-300."),
        (lambda: GenerationOptions(temperature=-1), "`temperature` must be at least 0 and at most 1e+06, not -1."),
    ],
)
def test_the_sentence_says_the_bound(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        make()
    assert str(raised.value).startswith(message)


@dataclass
class Gives:
    """Gives the same hits whatever it is asked for."""

    hits: Any
    config: dict[str, JsonValue] = field(default_factory=dict)

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        return self.hits(queries, k) if callable(self.hits) else self.hits  # type: ignore[no-any-return]


def hits_of(numbers: object, scores: object) -> Hits:
    return Hits(np.atleast_2d(np.array(numbers)), np.atleast_2d(np.array(scores)))


def test_fewer_columns_than_asked_for_will_do() -> None:
    hits = retrieve_checked(Gives(hits_of([2, 0], [3, 2])), ["a"], 4, passages=5)
    assert hits.of(0) == [(2, 3.0), (0, 2.0)]
    assert hits.numbers_QK.dtype == np.int64
    assert hits.scores_QK.dtype == np.float32
    none = retrieve_checked(Gives(hits_of(np.zeros((1, 0), int), np.zeros((1, 0)))), ["a"], 4, passages=5)
    assert none.numbers_QK.tolist() == [[-1]]


def test_no_one_is_asked_for_more_than_there_is() -> None:
    wide = Gives(lambda queries, k: Hits.none(len(queries), k))
    assert retrieve_checked(wide, ["a", "b"], 1 << 60, passages=3).numbers_QK.shape == (2, 3)


@pytest.mark.parametrize(
    ("hits", "message"),
    [
        (hits_of([[1], [2]], [[0.0], [0.0]]), "gives 2 rows of 1 for 1 queries and k = 4"),
        (hits_of([1, 2, 3, 4, 0], [0.0] * 5), "gives 1 rows of 5"),
        (hits_of([1.0], [0.0]), "numbers of type float64"),
        (hits_of([1], ["x"]), "scores of type"),
        (hits_of([5], [0.0]), "gives passage 5 of 5"),
        (hits_of([-2], [0.0]), "gives passage -2 of 5"),
        (hits_of([0], [np.nan]), "score that is not finite"),
        (hits_of([0], [1e300]), "score that is not finite"),
        (hits_of([-1, 0], [0.0, 0.0]), "a passage after an empty place"),
        (hits_of([3, 1, 3], [2.0, 1.0, 1.0]), "passage 3 twice"),
        ([[1]], "gives list and not Hits"),
    ],
)
def test_what_are_no_hits(hits: object, message: str) -> None:
    with pytest.raises(PartError, match=f"the retriever Gives .*{message}"):
        retrieve_checked(Gives(hits), ["a"], 4, passages=5)


NAMES = {name: f"--{name}" for name in ("stride", "retriever", "force", "plot")} | {"plot=False": "--no-plot"}


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("`stride` must be at least 1, not 0.", "--stride must be at least 1, not 0."),
        ('ask with `retriever="dense"` or `"hybrid"`', "ask with --retriever dense or hybrid"),
        ("replace it with `force=True`, or give `plot=False`", "replace it with --force, or give --no-plot"),
        ("give it a `config`; see `ralm eval --baseline`", "give it a `config`; see `ralm eval --baseline`"),
    ],
)
def test_messages_name_arguments_and_the_command_line_shows_flags(said: str, shown: str) -> None:
    assert with_flags(said, NAMES) == shown


def test_help_says_how_much_of_a_text_a_stand_in_reads() -> None:
    said = "".join(ralm("recipe", "run", "--help").out.split())
    assert "(thewholetext;2,000with--stand-in)" in said
    steps = recipe_named("in-context-ralm/table-2", RecipeFolder(stand_in=True)).steps
    assert all("2000" in step.words for step in steps if step.words[1] in ("retrieve", "eval"))

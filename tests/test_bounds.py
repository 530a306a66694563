"""Numbers at their extremes: every option record takes them or refuses them with a sentence that names the option."""

import math
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import pytest

from ralm.corpus.decontamination import Decontamination
from ralm.corpus.splitting import Splitting
from ralm.errors import UsageError
from ralm.lm.named import ModelOptions
from ralm.options import annotation, declared, without_none
from ralm.reading.concatenation import Concatenation
from ralm.reading.ensemble import Ensemble
from ralm.reading.plan import PlanOptions
from ralm.reading.sampling import GenerationOptions
from ralm.reranking import RerankOptions
from ralm.retrieval.bm25.formula import BM25Options, BuildOptions
from ralm.retrieval.dense.options import DenseSearchOptions, EncoderOptions, VectorOptions
from ralm.retrieval.hybrid import FusionOptions
from ralm.retrieval.random import RandomRetriever
from ralm.retrieval.retriever import RetrieverOptions

RECORDS: list[Any] = [
    BM25Options,
    BuildOptions,
    Concatenation,
    DenseSearchOptions,
    EncoderOptions,
    Ensemble,
    FusionOptions,
    GenerationOptions,
    ModelOptions,
    PlanOptions,
    RerankOptions,
    RetrieverOptions,
    Splitting,
    VectorOptions,
]
NUMBERS = [
    (record, field.name, without_none(kind) is float)
    for record in RECORDS
    for field, kind, _ in declared(record)
    if without_none(kind) in (int, float)
]


def made(record: Any, **given: object) -> object:
    needed = {field.name: "x" for field in fields(record) if field.default is field.default_factory is MISSING}
    return record(**needed | given)


def test_the_numbers_of_all_records_are_found() -> None:
    bare = [
        (record, field.name)
        for record in RECORDS
        for field in fields(record)
        if without_none(annotation(field.type)[0]) in (int, float)
    ]
    assert [(record, name) for record, name, _ in NUMBERS] == bare
    assert len(NUMBERS) > 25


@pytest.mark.parametrize(("record", "name", "real"), NUMBERS)
def test_extremes_of_an_option(record: Any, name: str, real: bool) -> None:
    worst = [math.nan, math.inf, -math.inf, -1.0, 1e308] if real else [-(2**63), -1, 2**63, 10**30]
    for value in worst:
        with pytest.raises(UsageError, match=r"must be .*, not .*\.$"):
            made(record, **{name: value})


@pytest.mark.parametrize(
    "make",
    [
        lambda number: RandomRetriever(3, seed=number),
        lambda number: Decontamination.of(ngram=number),
    ],
)
def test_extremes_of_arguments(make: Callable[[int], object]) -> None:
    make(3)
    for number in (-1, 2**64):
        with pytest.raises(UsageError, match="must be at"):
            make(number)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PlanOptions(max_length=0), "`max_length` must be at least 1, not 0."),
        (lambda: GenerationOptions(max_length=0), "`max_length` must be at least 1, not 0."),
        (lambda: PlanOptions(stride=2**31), "`stride` must be at most 2,147,483,647, not 2147483648."),
        (lambda: Ensemble(documents=0), "`documents` must be at least 1, not 0."),
        (lambda: RerankOptions(seed=-1), "`seed` must be at least 0, not -1."),
        (lambda: BuildOptions(megabytes=0), "`megabytes` must be above 0 and at most 1.04858e+06, not 0."),
        (lambda: GenerationOptions(temperature=-1), "`temperature` must be at least 0 and at most 1e+06, not -1."),
    ],
)
def test_the_sentence_says_the_bound(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        make()
    assert str(raised.value).startswith(message)

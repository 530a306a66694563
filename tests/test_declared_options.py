"""Options are declared once: what a record says of them is what a request's schema and a command's flags say."""

import json
from dataclasses import asdict
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from ralm.cli.process import with_flags
from ralm.errors import UsageError
from ralm.options import declared
from ralm.reading.ensemble import Ensemble
from ralm.reading.plan import PlanOptions
from ralm.reading.sampling import GenerationOptions
from ralm.recipes.recipe import STAND_IN_SCALE
from ralm.reranking import RerankOptions
from ralm.retrieval.retriever import RetrieverOptions
from tests.cli.program import ralm

RECORDS: list[Any] = [PlanOptions, Ensemble, GenerationOptions, RerankOptions, RetrieverOptions]


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_goes_through_json_and_its_schema_says_what_it_declares(record: Any) -> None:
    adapter = TypeAdapter(record)
    assert adapter.validate_json(json.dumps(asdict(record()))) == record()
    said = adapter.json_schema()["properties"]
    for field, _, option in declared(record):
        assert said[field.name]["description"] == option.help
        assert field.name in asdict(record())


def test_the_schema_has_bounds_choices_and_defaults() -> None:
    plan = TypeAdapter(PlanOptions).json_schema()["properties"]
    assert (plan["stride"]["minimum"], plan["stride"]["maximum"], plan["stride"]["default"]) == (1, 2**31 - 1, 4)
    assert plan["document_tokens"]["minimum"] == 0
    assert plan["windows"]["enum"] == ["sliding", "blocked", "rolling"]
    written = TypeAdapter(GenerationOptions).json_schema()["properties"]
    assert written["top_k"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
    assert written["top_p"]["exclusiveMinimum"] == 0


def test_a_request_is_refused_with_the_sentence_of_the_record() -> None:
    adapter = TypeAdapter(PlanOptions)
    assert adapter.validate_python({"stride": 8}) == PlanOptions(stride=8)
    with pytest.raises(UsageError, match="`stride` must be at least 1, not 0"):
        adapter.validate_python({"stride": 0})
    with pytest.raises(ValidationError, match="stride"):
        adapter.validate_python({"stride": "four"})


NAMES = {
    "stride": "--stride",
    "retriever": "--retriever",
    "force": "--force",
    "plot": "--plot",
    "plot=False": "--no-plot",
}


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
    said = " ".join(ralm("recipe", "run", "--help").out.split())
    assert f"(the whole text; {STAND_IN_SCALE.limit_tokens} with --stand-in)" in said

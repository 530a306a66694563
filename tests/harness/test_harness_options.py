"""The arguments of ralm in lm-evaluation-harness, and a harness that is missing or too old."""

from pathlib import Path
from typing import Any

import pytest

from ralm.errors import UsageError
from ralm.grammar import keys_of, parse_pairs
from ralm.harness.model import HarnessOptions, RalmLM, parse_arguments
from ralm.harness.requests import question_of
from ralm.reading.readers import Concatenation, Ensemble


def of(text: str) -> HarnessOptions:
    return parse_arguments(parse_pairs(text, "the model ralm"))


def test_flat_arguments_are_put_into_records() -> None:
    found = of(
        "lm=gpt2,index=here,reader=ensemble:temperature=2,documents=3,stride=8,device=cpu,max_length=512,"
        'retriever=random:seed=7,lm_args="trust_remote_code=true"'
    )
    assert found.lm == "gpt2"
    assert found.index == Path("here")
    assert found.reading.chosen_reader == Ensemble(documents=3, temperature=2.0)
    assert (found.plan.stride, found.plan.query_tokens, found.max_length) == (8, 32, 512)
    assert found.retrieval.retriever == "random:seed=7"
    assert (found.model.device, found.model.trust_remote_code) == ("cpu", True)


def test_values_are_of_their_types_whatever_the_harness_makes_of_them() -> None:
    assert of("lm=gpt2,index=here,reader=concatenation,documents=4").reading.chosen_reader == Concatenation(documents=4)
    found = of("lm=7,index=2024")
    assert (found.lm, found.index) == ("7", Path("2024"))
    sizes = {"batch_size": "auto:4", "max_batch_size": 9}
    assert parse_arguments({"lm": "gpt2", "index": None, **sizes}) == of("lm=gpt2"), "batches hold what fits"


def test_dense_retrieval_asks_with_more_tokens() -> None:
    assert of("lm=gpt2,index=here,retriever=dense").plan.query_tokens == 64
    assert of("lm=gpt2,index=here,retriever=dense,query_tokens=9").plan.query_tokens == 9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("index=here", r"^the model ralm needs lm=\.\.\.: Causal"),
        (
            "lm=gpt2,documnets=3",
            r"^the model ralm has no key 'documnets': its keys are lm, index, ",
        ),
        ("lm=gpt2,xyz=3", r"^the model ralm has no key 'xyz': its keys are lm, index, .*lm_args"),
        ("lm=gpt2,device=cpu,lm_args=device=cuda", "^`device` stands in `lm_args`, too: give one of them"),
        ("lm=gpt2,index=here,stride=often", r"^the model ralm: stride must be a whole number, not 'often'\.$"),
        ("lm=gpt2,lm_args=trust_remote_code=1", "trust_remote_code is true or false, not '1'"),
        ("lm=gpt2,reader=ensemble", "documents, mixer and rerank read passages: give index"),
        ("lm=gpt2,index=here,mixer=posterior", 'mixer has no effect without reader="ensemble"'),
        ("lm=gpt2,index=here,windows=blocked", "^the model ralm has no key 'windows'"),
        ("lm=ralm-tiny,lm_args=retries=3", "lm_args retries=3 is for models behind an API: leave it out for ralm-tiny"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        of(text)


@pytest.mark.parametrize(("given", "expected"), [("", "auto"), (",device=cpu", "cpu"), (",device=auto", "auto")])
def test_the_default_device_of_the_harness_is_auto(given: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command line passes cuda:0 if no device is given."""
    found: list[str] = []
    monkeypatch.setattr(RalmLM, "of", lambda options: found.append(options.model.device))
    RalmLM.create_from_arg_string(f"lm=gpt2{given}", {"device": "cuda:0", "batch_size": 1})
    assert found == [expected]


def test_every_argument_is_listed_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "lm-evaluation-harness.md").read_text(encoding="utf-8")
    assert [name for name in keys_of(HarnessOptions) if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("document", "question"),
    [
        ({"question": "who?", "query": "Q: who?"}, "who?"),
        ({"question": {"stem": "who?"}, "goal": "find out who"}, "find out who"),
        ({"question": "  ", "Problem": "1 + 1"}, "1 + 1"),
        ({"text": "a text"}, None),
        ({}, None),
        (None, None),
        (["who?"], None),
    ],
)
def test_the_question_is_the_first_field_with_text(document: Any, question: str | None) -> None:
    assert question_of(document) == question


def test_a_named_field_must_have_text() -> None:
    assert question_of({"text": "a", "question": "b"}, "text") == "a"
    for document in ({"question": "b", "answer": 3}, {"text": 3, "question": "b"}):
        with pytest.raises(UsageError, match=r'^`question_field="text"` has no text in .* its fields are .*question'):
            question_of(document, "text")

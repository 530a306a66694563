"""A server with a gate reads what the library reads with that gate, and its metrics count what was saved."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from ralm import FromRetriever, GatedSource, GenerationOptions, OpenedGate, PlanOptions, evaluate_text, generate_many
from ralm.reading.gate import ConfidenceGate
from ralm.serving.options import ServeOptions
from ralm.serving.service import Service
from tests.cli.program import failed, ralm
from tests.serving.served import MODEL, PROMPTS, serving, tiny

GATE = ConfidenceGate(0.4)


def served(index: Path, gate: ConfidenceGate, paths: Sequence[tuple[str, Any]]) -> tuple[list[Any], dict[str, float]]:
    """The answers of a server with a gate, and the metrics of the gate."""
    service = Service(tiny(), ServeOptions(prompt="in-context-ralm"), folders={"few": index}, gate=gate)
    with serving(service) as url, httpx.Client(base_url=url, timeout=60) as client:
        answers = [client.post(path, json={"model": MODEL, **body}).raise_for_status().json() for path, body in paths]
        lines = [line.split() for line in client.get("/metrics").text.splitlines() if line.startswith("ralm_gate_")]
        return answers, {name.removeprefix("ralm_gate_"): float(value) for name, value in lines}


def test_completions_are_those_of_the_library(index: Path) -> None:
    bodies = [{"prompt": prompt, "max_tokens": 12, "temperature": 0} for prompt in PROMPTS]
    answers, metrics = served(index, GATE, [("/v1/completions", body) for body in bodies])
    opened = OpenedGate(GATE, tiny())
    source = FromRetriever.of_index(index)
    options = GenerationOptions(new_tokens=12, temperature=0)
    texts = [""] * len(PROMPTS)
    for number, piece in generate_many(PROMPTS, tiny(), options, source, gate=opened):
        texts[number] += piece.text
    assert [answer["choices"][0]["text"] for answer in answers] == texts
    counts = opened.counts
    assert 0 < counts.retrieved < counts.strides
    saved = counts.strides - counts.retrieved
    assert metrics == {"strides": counts.strides, "retrievals_saved": saved, "readings_saved": saved}


def test_an_echoed_prompt_is_scored_as_by_eval(index: Path) -> None:
    body = {"prompt": PROMPTS[5], "max_tokens": 0, "echo": True, "logprobs": 0}
    [answer], metrics = served(index, GATE, [("/v1/completions", body)])
    source = GatedSource(FromRetriever.of_index(index), GATE, tiny())
    found = evaluate_text(PROMPTS[5], tiny(), PlanOptions(max_length=tiny().max_length), source=source)
    given = answer["choices"][0]["logprobs"]["token_logprobs"][1:]
    np.testing.assert_allclose(given, found.reading.scored.log_probs_T, atol=1e-4)
    assert metrics["strides"] == source.opened.counts.strides
    assert 0 < metrics["retrievals_saved"] < metrics["strides"]


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_a_chat_reads_passages_where_the_gate_opens(index: Path, threshold: float) -> None:
    body = {"messages": [{"role": "user", "content": "What sings in the sea?"}], "max_tokens": 6, "temperature": 0}
    [answer], metrics = served(index, ConfidenceGate(threshold), [("/v1/chat/completions", body)])
    [plain], _ = served(index, GATE, [("/v1/chat/completions", {**body, "ralm": {"index": None}})])
    same = answer["choices"][0]["message"]["content"] == plain["choices"][0]["message"]["content"]
    assert len(answer["ralm"]["choices"][0]["sources"]) == int(threshold)
    assert same or threshold
    assert metrics == {"strides": 1.0, "retrievals_saved": 1 - threshold, "readings_saved": 1 - threshold}


def test_a_gate_that_means_nothing_is_rejected(index: Path) -> None:
    failed(ralm("serve", "--lm", MODEL, "--gate", "confidence"), 2, "--gate has no effect without --index")
    failed(ralm("serve", "--index", index, "--gate", "confidence"), 2, "--gate has no effect without --lm")
    given = ("serve", "--lm", MODEL, "--index", index, "--port", 0)
    failed(ralm(*given, "--gate", "confidence:2"), 2, "must be at least 0 and at most 1")

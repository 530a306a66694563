"""How real servers answer.

They take gigabytes: the tests run if RALM_REAL_SERVERS names them, as tools/real_servers/README.md says.
"""

import os
from typing import Any

import httpx
import numpy as np
import pytest

from ralm import ScoringSequence, load_language_model

TEXT = "The list type has a method that sorts its items in place.\n\nIt takes two keyword arguments: ≠ and x."


@pytest.fixture(scope="module")
def servers() -> dict[str, str]:
    """URL#MODEL of each server, by its name."""
    named = os.environ.get("RALM_REAL_SERVERS") or pytest.skip("RALM_REAL_SERVERS names no servers")
    return dict(server.split("=", 1) for server in named.split())


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    return [int(token) for token in load_language_model("ralm-tiny").tokenizer.encode(TEXT)]


@pytest.fixture(scope="module")
def log_probs(tokens: list[int]) -> list[float]:
    """What the local model gives for every token but the first."""
    model = load_language_model("ralm-tiny")
    (found,) = model.score([ScoringSequence(np.array(tokens), np.arange(1, len(tokens)))])
    return [float(one) for one in found]


def post(name: str, path: str, body: dict[str, Any]) -> Any:
    """The answer of a server to a request; a path that begins with // is one of its root."""
    url, _, model = name.partition("#")
    base = url.removesuffix("/v1") + path[1:] if path.startswith("//") else url + path
    answer = httpx.post(base, json={"model": model, "temperature": 0, **body}, timeout=60)
    return answer.raise_for_status().json()


def test_vllm_gives_the_log_probabilities_of_the_prompt(
    servers: dict[str, str], tokens: list[int], log_probs: list[float]
) -> None:
    body = {"prompt": tokens, "max_tokens": 1, "prompt_logprobs": 0}
    first, *rest = post(servers["vllm"], "/completions", body)["choices"][0]["prompt_logprobs"]
    assert first is None
    found = [one[str(token)]["logprob"] for one, token in zip(rest, tokens[1:], strict=True)]
    np.testing.assert_allclose(found, log_probs, atol=1e-4)


def test_llama_cpp_gives_the_whole_vocabulary_if_its_answer_ends_the_text(
    servers: dict[str, str], tokens: list[int], log_probs: list[float]
) -> None:
    for place in range(1, len(tokens)):
        body = {"prompt": tokens[:place], "n_predict": 1, "n_probs": 4096, "logit_bias": [[0, 1000]]}
        (entry,) = post(servers["llama.cpp"], "//completion", body)["completion_probabilities"]
        found = {one["id"]: one["logprob"] for one in entry["top_logprobs"]}
        assert len(found) == 4096
        assert found[tokens[place]] == pytest.approx(log_probs[place - 1], abs=1e-4)


def test_llama_cpp_gives_no_figures_for_a_token_that_ends_within_a_character(
    servers: dict[str, str], tokens: list[int]
) -> None:
    whole = {"prompt": tokens[:5], "n_predict": 1, "n_probs": 1, "logit_bias": [[445, 1000]]}
    cut = {**whole, "logit_bias": [[159, 1000]]}
    assert "completion_probabilities" in post(servers["llama.cpp"], "//completion", whole)
    assert "completion_probabilities" not in post(servers["llama.cpp"], "//completion", cut)

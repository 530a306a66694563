"""The benchmark of models behind an API: its server, its counts, and its plain loops against ralm's own paths."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.api.certified import Step, certified_table, greedy_steps, scored_table
from benchmarks.api.instant_server import instant_server, log_prob
from benchmarks.api.material import Material, asked_model
from benchmarks.api.reading_ahead import token_by_token, written
from benchmarks.api.requests import planned, rate, spread
from ralm.lm import TINY
from ralm.lm.registry import load_local_model
from ralm.reading.ensemble import Ensemble
from ralm.reading.generate import generate
from ralm.reading.mixers import UniformWeights
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from ralm.records import Passage, PromptPrefix
from ralm.retrieval.build import build_index
from tests.api.backings import OfModel
from tests.api.dialects import VLLM
from tests.api.scripted_server import ScriptedServer

TEXTS = (
    "A list is a sequence of objects. Lists are written in square brackets, and their items are separated by commas.",
    "A dictionary maps keys to values. The keys of a dictionary are unique.",
    "A set is an unordered collection of objects. A list may be turned into a set.",
    "The str type holds text. Its methods return new strings.",
    "An iterator returns the items of a list or of another object one by one.",
)
OPTIONS = GenerationOptions(new_tokens=12, stride=4, document_tokens=24)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    index: Path = tmp_path_factory.mktemp("material") / "index"
    build_index([Passage(number, f"d{number}", "", text) for number, text in enumerate(TEXTS)], index)
    text = " ".join(TEXTS[::-1]) * 4
    return Material(load_local_model(TINY), text, FromRetriever.of_index(index), index)


@pytest.fixture(scope="module")
def instant(material: Material) -> Iterator[str]:
    tokenizer = material.model.tokenizer
    texts = [tokenizer.decode(np.array([token])) for token in range(tokenizer.vocabulary)]
    with instant_server(texts, material.model.max_length, 0.0) as name:
        yield name


def test_the_steps_of_an_ensemble_are_those_of_generation(material: Material) -> None:
    [prompt] = material.prompts(1)
    reader = Ensemble(documents=3, mixer=UniformWeights())
    steps = [*greedy_steps(material, prompt, reader, OPTIONS)]
    text = material.model.tokenizer.decode(prompt)
    assert np.array_equal(material.model.tokenizer.encode(text), prompt)
    pieces = generate(text, material.model, OPTIONS, material.source, reader=reader)
    tokens = [token for piece in pieces for token in piece.tokens]
    assert [step.best for step in steps] == [token.token for token in tokens]
    assert max(len(step.prompt_prefixes) for step in steps) == 3


def test_a_token_is_certified_as_soon_as_the_lists_leave_no_doubt() -> None:
    even = [PromptPrefix(np.zeros(0, dtype=np.int64), (), np.log(0.5))] * 2
    apart = Step(np.log(np.array([[0.5, 0.3, 0.15, 0.05], [0.05, 0.15, 0.3, 0.5]], dtype=np.float32)), even)
    assert apart.best in (0, 3)
    assert apart.drawn(1) == (False, True)
    hidden = Step(np.log(np.array([[0.5, 0.45, 0.05], [0.05, 0.45, 0.5]], dtype=np.float32)), even)
    assert hidden.best == 1
    assert hidden.drawn(1) == (False, False)
    assert hidden.drawn(2) == (True, True)
    assert hidden.drawn(3) == (True, True)


def test_all_tokens_are_certified_if_all_are_listed(material: Material) -> None:
    for row in certified_table(material, 1, [2]):
        assert row[f"certified, k = {material.model.vocabulary}"] == "100.0%"
        assert row[f"others right, k = {material.model.vocabulary}"] == "0 of 0"


def test_more_listed_tokens_and_fewer_documents_make_more_targets_exact(material: Material) -> None:
    rows = [*scored_table(material, 6)]
    share = np.array([[float(str(row[f"exact, k = {k}"])[:-1]) for k in (5, 20, 100)] for row in rows])
    lost = np.array([[float(str(row[f"listed by none, k = {k}"])[:-1]) for k in (5, 20, 100)] for row in rows])
    assert (np.diff(share, axis=1) >= 0).all()
    assert (np.diff(share, axis=0) <= 0).all()
    assert (np.diff(lost, axis=0) <= 0).all()
    assert np.allclose(share[0] + lost[0], 100, atol=0.11)


def test_the_instant_server_passes_the_probe_and_scores_as_it_says(material: Material, instant: str) -> None:
    _, passes = planned(material, "blocked", 20, 2)
    with asked_model(instant) as model:
        assert model.backend.tier.startswith("1")
        for one, found in zip(passes, model.score(passes), strict=True):
            assert np.allclose(found, [log_prob(token) for token in one.tokens_N[one.targets_P].tolist()], rtol=1e-5)
        listed = model.continuations().next_tokens([passes[0].tokens_N])
        assert listed.tokens_BC is not None
        assert set(range(20)) == set(listed.tokens_BC[0].tolist())
        wanted = np.array([3000, 7])
        found = model.continuations().next_tokens([passes[0].tokens_N], wanted).log_probs_BC
        assert np.allclose(found, [[log_prob(3000), log_prob(7)]])


@pytest.mark.parametrize("windows", ["sliding", "blocked"])
def test_every_pass_is_one_request_and_every_pair_is_counted(material: Material, instant: str, windows: str) -> None:
    assert windows in ("sliding", "blocked")
    counts, passes = planned(material, "sliding" if windows == "sliding" else "blocked", 30, 3)
    merged = int(str(counts["merged: equal"])) + int(str(counts["merged: prefixes"]))
    assert counts["pairs"] == merged + len(passes)
    assert counts["requests"] == len(passes)
    assert counts["strides"] == 30
    with asked_model(instant, at_once=4) as model:
        fast, used = rate(model, spread(passes, 10))
    assert fast > 0
    assert used > 0


def test_reading_ahead_changes_the_number_of_requests_alone(material: Material) -> None:
    prompts, reader = material.prompts(2), Ensemble(documents=2, mixer=UniformWeights())
    with ScriptedServer(OfModel(material.model), VLLM()) as server:
        name = f"{server.root}#{server.model}"
        with asked_model(name) as model:
            ahead = written(material, model, prompts, reader, OPTIONS)
            few = model.client.usage.requests
        with asked_model(name) as model:
            plain = written(material, token_by_token(model), prompts, reader, OPTIONS)
            many = model.client.usage.requests
    assert ahead == plain
    assert all(len(tokens) == OPTIONS.new_tokens for tokens in plain)
    assert many >= 2 * 2 * OPTIONS.new_tokens
    assert few < many

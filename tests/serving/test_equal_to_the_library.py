"""What is served is what `ralm generate` and `ralm eval` give, alone and among many, greedy and seeded."""

import random
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from ralm import (
    Concatenation,
    Ensemble,
    FromRetriever,
    GenerationOptions,
    Oracle,
    PlanOptions,
    Prompt,
    ZeroShot,
    evaluate_text,
    generate,
)
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.registry import load_local_model
from ralm.lm.scoring import Scorer
from ralm.reading.mixture import PosteriorWeights
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.reading.provenance import traced_generation
from ralm.serving.local import LocalService
from ralm.serving.options import Settings
from tests.api.backings import OfTable
from tests.rounding import rounded
from tests.serving.served import MODEL, PROMPTS, events_of, local, serving, tiny
from tests.tiny_models import save_tiny_model

READERS: dict[str, Parts] = {
    "in-context": IN_CONTEXT,
    "ensemble": Parts(reader=Ensemble(documents=3)),
    "concatenation": Parts(reader=Concatenation(documents=2)),
    "posterior": Parts(reader=Ensemble(documents=3), mixer=PosteriorWeights(eta=0.5)),
}
RERANKERS: dict[str, Any] = {"none": None, "zero-shot": ZeroShot(candidates=4), "oracle": Oracle(candidates=4)}


def drawn(draw: random.Random, *, echo: bool) -> dict[str, Any]:
    """A request that any client could send."""
    reader = draw.choice(["in-context", "ensemble", "concatenation"])
    choice: dict[str, Any] = {"index": None}
    if draw.random() < 0.75:
        choice = {"reader": reader, "stride": draw.choice([2, 4, 7])}
        if reader != "in-context":
            choice["documents"] = READERS[reader].reader.hits
            if reader == "ensemble" and draw.random() < 0.5:
                choice |= {"mixer": "posterior:eta=0.5"}
        elif draw.random() < 0.4:
            choice |= {"rerank": f"{'oracle' if echo else 'zero-shot'}:candidates=4"}
        if not echo and draw.random() < 0.3:
            choice["query"] = "whales sing"
    body: dict[str, Any] = {"model": MODEL, "prompt": draw.choice(PROMPTS), "logprobs": 0, "ralm": choice}
    if echo:
        return {**body, "echo": True, "max_tokens": 0}
    body |= {"max_tokens": draw.randint(1, 12), "temperature": draw.choice([0, 0.7, 1.5]), "seed": draw.randrange(99)}
    if draw.random() < 0.3:
        body["stop"] = draw.choice([["e", "\n"], " the"])
    if body["temperature"] and draw.random() < 0.5:
        body["top_p"] = 0.8
    return body


def source_of(service: LocalService, choice: Mapping[str, Any]) -> FromRetriever | None:
    return None if choice.get("index", "few") is None else FromRetriever.of_index(service.indexes.index("few"))


def parts_of(service: LocalService, choice: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "source": source_of(service, choice),
        "parts": replace(
            READERS[(choice.get("mixer") or choice.get("reader", "in-context")).partition(":")[0]],
            reranker=RERANKERS[choice.get("rerank", "none").partition(":")[0]],
        ),
    }


def generated(service: LocalService, body: Mapping[str, Any], time: int = 0) -> tuple[str, list[float]]:
    """What the library writes for a request, and the log-probability of each token."""
    choice, stop = body["ralm"], body.get("stop", ())
    options = GenerationOptions(
        new_tokens=body["max_tokens"],
        temperature=body["temperature"],
        seed=body["seed"] + time,
        top_p=body.get("top_p", 1.0),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stride=choice.get("stride", 4),
    )
    pieces = list(generate(Prompt(body["prompt"], choice.get("query")), tiny(), options, **parts_of(service, choice)))
    return "".join(piece.text for piece in pieces), [one.log_prob for piece in pieces for one in piece.tokens]


def evaluated(service: LocalService, body: Mapping[str, Any]) -> list[float]:
    """The log-probability of every token of a prompt but the first, as `ralm eval` gives it."""
    plan = PlanOptions(max_length=tiny().max_length, stride=body["ralm"].get("stride", 4))
    scorer = Scorer(tiny(), progress=False)
    found: list[float] = evaluate_text(
        body["prompt"], scorer, plan, **parts_of(service, body["ralm"])
    ).reading.scored.log_probs_T.tolist()
    return found


def check(service: LocalService, body: Mapping[str, Any], answer: Any) -> None:
    """The one choice of an answer is what the library gives."""
    [choice] = answer["choices"]
    listed = choice["logprobs"]["token_logprobs"]
    if body.get("echo"):
        assert choice["text"] == body["prompt"]
        assert listed[0] is None
        assert listed[1:] == pytest.approx(evaluated(service, body), abs=1e-4)
    else:
        text, log_probs = generated(service, body)
        assert choice["text"] == text
        assert listed == pytest.approx(log_probs, abs=1e-4)


def answered(client: httpx.Client, body: Mapping[str, Any]) -> Any:
    got = client.post("/v1/completions", json=body)
    assert got.status_code == 200, got.text
    return got.json()


@pytest.mark.filterwarnings("ignore:no passage was found")
@pytest.mark.parametrize("echo", [False, True])
def test_random_requests_alone_and_among_many(client: httpx.Client, service: LocalService, echo: bool) -> None:
    draw = random.Random(5 + echo)
    bodies = [drawn(draw, echo=echo) for _ in range(16)]
    bodies = [body for body in bodies if not (echo and body["prompt"] == "The")]  # nothing before its only token
    alone = [answered(client, body) for body in bodies]
    for body, answer in zip(bodies, alone, strict=True):
        check(service, body, answer)
    with ThreadPoolExecutor(32) as pool:
        among = list(pool.map(lambda body: answered(client, body), bodies))
    for one, other in zip(alone, among, strict=True):
        assert one["choices"][0]["text"] == other["choices"][0]["text"]
        np.testing.assert_allclose(
            np.array(one["choices"][0]["logprobs"]["token_logprobs"], dtype=float),
            np.array(other["choices"][0]["logprobs"]["token_logprobs"], dtype=float),
            atol=1e-4,
        )


def test_several_prompts_and_several_times(client: httpx.Client, service: LocalService) -> None:
    body = {"model": MODEL, "max_tokens": 6, "temperature": 1.0, "seed": 7, "ralm": {}}
    prompts = PROMPTS[:3]
    answer = answered(client, {**body, "prompt": prompts, "n": 2})
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    for number, choice in enumerate(answer["choices"]):
        expected = generated(service, {**body, "prompt": prompts[number // 2]}, number % 2)
        assert choice["text"] == expected[0]
    assert answer["usage"]["completion_tokens"] == 36


def test_token_ids_are_read_as_the_text_is(client: httpx.Client) -> None:
    body = {"model": MODEL, "max_tokens": 5, "temperature": 0, "echo": True, "logprobs": 2}
    for prompt in PROMPTS[:4]:
        ids = tiny().tokenizer.encode(prompt).tolist()
        text, numbers = answered(client, {**body, "prompt": prompt}), answered(client, {**body, "prompt": ids})
        assert text["choices"] == rounded(numbers["choices"])


@pytest.mark.parametrize("prompt", PROMPTS[:4])
def test_a_stream_is_the_whole_answer_in_pieces(client: httpx.Client, prompt: str) -> None:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 9, "temperature": 0.9, "seed": 3, "logprobs": 0, "n": 2}
    body["ralm"] = {"reader": "ensemble", "documents": 2, "gain": True}
    whole = answered(client, body)
    got = client.post("/v1/completions", json={**body, "stream": True, "stream_options": {"include_usage": True}})
    assert got.headers["content-type"].startswith("text/event-stream")
    pieces = events_of(got.text)
    assert pieces[-1]["usage"] == whole["usage"]
    assert pieces[-1]["choices"] == []
    for number, choice in enumerate(whole["choices"]):
        own = [one["choices"][0] for one in pieces[:-1] if one["choices"][0]["index"] == number]
        assert "".join(one["text"] for one in own) == choice["text"]
        assert [one["finish_reason"] for one in own if one["finish_reason"]] == [choice["finish_reason"]]
        for name, values in choice["logprobs"].items():
            assert [value for one in own if one["logprobs"] for value in one["logprobs"][name]] == rounded(values)
        sourced = [
            token
            for one in pieces[:-1]
            for told in one.get("ralm", {}).get("choices", [])
            if told["index"] == number
            for token in told.get("tokens", [])
        ]
        assert sourced == rounded(whole["ralm"]["choices"][number]["tokens"])
    assert pieces[-2]["ralm"]["choices"][0]["gain"] == rounded(whole["ralm"]["choices"][0]["gain"])
    assert pieces[-2]["search_results"] == whole["search_results"]


def test_sources_and_gains_of_what_is_written(client: httpx.Client, service: LocalService) -> None:
    body = {"model": MODEL, "prompt": PROMPTS[0], "max_tokens": 9, "temperature": 0, "seed": 0}
    answer = answered(client, {**body, "ralm": {"reader": "ensemble", "documents": 3, "gain": True}})
    options = GenerationOptions(new_tokens=9)
    source = source_of(service, {})
    assert source is not None
    pieces = list(generate(PROMPTS[0], tiny(), options, source, Parts(reader=Ensemble(documents=3))))
    traced = traced_generation(PROMPTS[0], pieces, tiny(), source.passages)
    tokens = [token for piece in pieces for token in piece.tokens]
    told = answer["ralm"]["choices"][0]
    assert [one["token"] for one in told["tokens"]] == [one.token for one in tokens]
    for one, token in zip(told["tokens"], tokens, strict=True):
        assert one["passages"] == token.passages_K.tolist()
        assert one["posteriors"] == pytest.approx(token.posteriors_K.tolist(), abs=1e-4)
    assert told["gains"] == pytest.approx(traced.gain_T.tolist(), abs=1e-3)
    assert told["gain"]["nats"] == pytest.approx(traced.gain.nats, abs=1e-3)
    passages = {one["passage"]: one for one in answer["ralm"]["passages"]}
    assert passages.keys() == traced.passages.keys()
    assert all(passages[number]["text"] == one.text for number, one in traced.passages.items())
    assert {one["passage"] for one in answer["search_results"]} == passages.keys()
    assert {one["url"] for one in answer["search_results"] if one["document_id"] == "hill"} <= {"http://h"}


@pytest.mark.parametrize("reader", READERS)
def test_likeliest_tokens_of_a_prompt(client: httpx.Client, service: LocalService, reader: str) -> None:
    choice = (
        {"reader": reader} if reader == "in-context" else {"reader": reader, "documents": READERS[reader].reader.hits}
    )
    if reader == "posterior":
        choice |= {"reader": "ensemble", "mixer": reader}
    body = {"model": MODEL, "prompt": PROMPTS[1], "max_tokens": 0, "echo": True, "ralm": choice}
    without = answered(client, {**body, "logprobs": 0})
    listed = answered(client, {**body, "logprobs": 3})
    one, other = (answer["choices"][0]["logprobs"] for answer in (without, listed))
    assert one["token_logprobs"][1:] == pytest.approx(other["token_logprobs"][1:], abs=1e-4)
    for top, log_prob, name in zip(
        other["top_logprobs"][1:], other["token_logprobs"][1:], other["tokens"][1:], strict=True
    ):
        assert 3 <= len(top) <= 4
        assert top[name] == log_prob <= max(top.values())
        assert sum(np.exp([*top.values()])) <= 1 + 1e-4
    told, of_list = (answer["ralm"]["choices"][0]["tokens"] for answer in (without, listed))
    for token, same in zip(told[1:], of_list[1:], strict=True):
        shares = {number: share for number, share in zip(token["passages"], token["posteriors"], strict=True) if share}
        of_same = {number: share for number, share in zip(same["passages"], same["posteriors"], strict=True) if share}
        assert shares == pytest.approx(of_same, abs=1e-4)


def test_a_prompt_of_one_token_has_nothing_before_it(client: httpx.Client) -> None:
    body = {"model": MODEL, "prompt": "The", "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 2}
    [choice] = answered(client, body)["choices"]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert len(choice["logprobs"]["tokens"]) == 2
    assert choice["logprobs"]["text_offset"] == [0, 3]


def test_the_end_of_a_text_is_a_token_behind_an_echoed_prompt() -> None:
    """Clients of `echo` count on one token more than the prompt has, whatever the model writes."""
    body = {"model": "table-1", "max_tokens": 40, "temperature": 1, "logprobs": 0}
    with serving(local(OfTable(seed=1, ends=True))) as url, httpx.Client(base_url=url, timeout=60) as http:
        reasons = Counter[str]()
        for seed in range(20):
            [alone] = answered(http, {**body, "seed": seed, "prompt": "abc"})["choices"]
            [echoed] = answered(http, {**body, "seed": seed, "prompt": "abc", "echo": True})["choices"]
            end = ["<|end|>"] if alone["finish_reason"] == "stop" else []
            assert echoed["logprobs"]["tokens"] == ["a", "b", "c", *alone["logprobs"]["tokens"], *end]
            assert echoed["text"] == "abc" + alone["text"]
            assert echoed["finish_reason"] == alone["finish_reason"]
            reasons[alone["finish_reason"]] += 1
    assert reasons.keys() == {"stop", "length"}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LocalLanguageModel:
    """A model whose tokenizer begins a text with a BOS."""
    return load_local_model(str(save_tiny_model("llama", tmp_path_factory.mktemp("model") / "llama")))


def test_a_bos_is_read_once_and_never_told(llama: LocalLanguageModel) -> None:
    """Text begins with the BOS that the tokenizer puts first; token ids are read as they are."""
    with serving(local(llama)) as url:
        assert [one["id"] for one in httpx.get(f"{url}/v1/models").json()["data"]] == ["llama"]
        body = {"model": "llama", "max_tokens": 0, "echo": True, "logprobs": 0}
        text = "The sea is"
        ids = llama.tokenizer.encode(text).tolist()

        def scored(prompt: object) -> list[float]:
            answer = httpx.post(f"{url}/v1/completions", json={**body, "prompt": prompt}).json()
            found: list[float] = answer["choices"][0]["logprobs"]["token_logprobs"]
            assert found[0] is None
            return found[1:]

        of_text, with_bos, without = scored(text), scored([256, *ids]), scored(ids)
        assert of_text == pytest.approx(with_bos[1:], abs=1e-4)
        assert without != pytest.approx(of_text, abs=1e-2)


def test_under_retrieval_a_bos_begins_the_reading(llama: LocalLanguageModel, index: Path) -> None:
    settings = Settings(plan=PlanOptions(document_tokens=16, max_length=64))
    service = local(llama, folders={"few": index}, max_length=64, settings=settings)
    with serving(service) as url:
        body = {"model": "llama", "max_tokens": 4, "temperature": 0, "echo": True, "logprobs": 0}
        text = "The sea is deep and"
        ids = llama.tokenizer.encode(text).tolist()
        of_text, of_ids = (
            httpx.post(f"{url}/v1/completions", json={**body, "prompt": prompt}).json()["choices"][0]
            for prompt in (text, [256, *ids])
        )
        assert of_text["text"] == of_ids["text"].removeprefix("<s>")
        one, other = of_text["logprobs"]["token_logprobs"], of_ids["logprobs"]["token_logprobs"]
        assert one[1:] == pytest.approx(other[2:], abs=1e-4)
        assert other[1] < 0  # the first token behind the BOS is scored

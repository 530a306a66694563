"""The imitated providers answer as the real ones do: what their documentation and sources say is in the dialects."""

import http.client
import json
import threading
from http.client import HTTPConnection
from typing import Any

import numpy as np
import pytest

from ralm.lm.registry import load_local_model
from ralm.records import ScoringSequence
from tests.api.backings import Backing, OfModel, OfTable
from tests.api.dialects import VLLM, Dialect, LlamaCpp, LlamaCppPython, OpenAI, SGLang, TextOnly, chat_text
from tests.api.faults import Slow
from tests.api.scripted_server import ScriptedServer

TABLE = OfTable(seed=3)
TEXT = "The list type"
TOKENS = TABLE.tokenizer.encode(TEXT).tolist()
SCORED = {"prompt": TOKENS, "max_tokens": 1, "echo": True, "logprobs": 2}


def ask(server: ScriptedServer, path: str, body: Any) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    connection = HTTPConnection(server.root.removeprefix("http://"))
    try:
        connection.request("POST", path, json.dumps({"model": server.model, **body}))
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def post(dialect: Dialect, path: str, body: Any, backing: Backing = TABLE) -> Any:
    """The JSON of a server's answer."""
    with ScriptedServer(backing, dialect) as server:
        status, answer = ask(server, path, body)
    assert status == 200, answer
    return answer


def completion(dialect: Dialect, body: Any, backing: Backing = TABLE) -> Any:
    """The only choice of a completion."""
    [choice] = post(dialect, "/v1/completions", body, backing)["choices"]
    return choice


def own(tokens: list[int], backing: Backing = TABLE) -> list[float | None]:
    """The log-probability of each token, None for the first."""
    rows_NV = backing.log_probs(tokens)
    return [None, *(float(row_V[token]) for row_V, token in zip(rows_NV, tokens[1:], strict=False))]


def greedy(tokens: list[int], count: int) -> list[int]:
    """The likeliest tokens after a text."""
    written = list(tokens)
    for _ in range(count):
        written.append(int(TABLE.log_probs(written)[-1].argmax()))
    return written[len(tokens) :]


def top(tokens: list[int], count: int) -> list[int]:
    """The likeliest next tokens after a text."""
    return [int(token) for token in np.argsort(-TABLE.log_probs(tokens)[-1])[:count]]


def test_a_local_model_gives_the_log_probabilities_that_it_scores_with() -> None:
    model = load_local_model("ralm-tiny")
    tokens = model.tokenizer.encode("The list type of Python is é and 中.")
    backing = OfModel(model, kept=2)
    for text in (tokens, tokens[:3], tokens[:-1], np.concatenate([tokens[:2], tokens[4:]])):
        [scored] = model.score([ScoringSequence(text, np.arange(1, len(text)))])
        assert own(text.tolist(), backing)[1:] == pytest.approx(scored.tolist(), abs=1e-4)
    assert b"".join(map(backing.piece, tokens.tolist())).decode() == "The list type of Python is é and 中."


def test_openai_lists_the_likeliest_tokens_of_a_chat_with_their_bytes() -> None:
    messages = [{"role": "user", "content": "a question"}]
    prompt = TABLE.tokenizer.encode(chat_text(messages)).tolist()
    asked = {"messages": messages, "max_tokens": 2, "temperature": 0, "logprobs": True, "top_logprobs": 20}
    [choice] = post(OpenAI(), "/v1/chat/completions", asked)["choices"]
    first = choice["logprobs"]["content"][0]
    assert bytes(first["bytes"]).decode() == first["token"] == TABLE.tokenizer.spellings[greedy(prompt, 1)[0]]
    assert [TABLE.tokenizer.token_of(one["token"]) for one in first["top_logprobs"]] == top(prompt, 20)
    log_probs_V = TABLE.log_probs(prompt)[-1]
    assert [one["logprob"] for one in first["top_logprobs"]] == pytest.approx(log_probs_V[top(prompt, 20)].tolist())


def test_names_of_parts_of_characters() -> None:
    """OpenAI writes their bytes, vLLM the character with its last part, llama.cpp tells nothing of the parts before."""
    model = load_local_model("ralm-tiny")
    backing, asked = OfModel(model), {**SCORED, "prompt": model.tokenizer.encode("a 中").tolist()}
    assert completion(OpenAI(), asked, backing)["logprobs"]["tokens"][-2].startswith("bytes:\\x")
    named = completion(VLLM(), asked, backing)["logprobs"]["tokens"][:-1]
    assert ("".join(named), named.count("")) == ("a 中", 2)
    first = int(model.tokenizer.encode("中")[0])
    one = {"prompt": "a", "n_predict": 1, "n_probs": 1, "temperature": 0, "return_tokens": True}
    forced = post(LlamaCpp(), "/completion", {**one, "logit_bias": [[first, 1000]]}, backing)
    assert forced["tokens"] == [first]
    assert "completion_probabilities" not in forced
    [ended] = post(LlamaCpp(), "/completion", {**one, "logit_bias": [[0, 1000]]}, backing)["completion_probabilities"]
    assert (ended["id"], ended["token"], ended["bytes"]) == (0, "", [])


@pytest.mark.parametrize(
    ("dialect", "path", "body", "status", "said"),
    [
        (OpenAI(), "/v1/completions", {**SCORED, "logprobs": 6}, 400, "logprobs"),
        (OpenAI(echoes=False), "/v1/completions", SCORED, 400, "at the same time"),
        (OpenAI(), "/v1/completions", {"model": "gone", "prompt": "a"}, 404, "model_not_found"),
        (OpenAI(), "/v1/completions", {"prompt": "a" * 250, "max_tokens": 9}, 400, "maximum context length is 256"),
        (OpenAI(), "/v1/chat/completions", {"messages": [], "logprobs": True, "top_logprobs": 21}, 400, "equal to 20"),
        (OpenAI(), "/generate", {}, 404, "Invalid URL"),
        (VLLM(), "/v1/completions", {**SCORED, "logprobs": 21}, 400, "sample logprobs of 21, which is greater"),
        (VLLM(), "/v1/completions", {"prompt": "a", "prompt_logprobs": 21}, 400, "prompt logprobs of 21"),
        (VLLM(), "/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens must be at least 1"),
        (VLLM(), "/v1/completions", {"prompt": "a", "logprob_token_ids": [1]}, 400, "`logprobs` must be set"),
        (VLLM(), "/v1/completions", {**SCORED, "prompt": "a" * 256}, 400, "decoder prompt (length 256)"),
        (VLLM(), "/v1/completions", {"prompt": "a", "logprobs": 0, "logprob_token_ids": [1] * 129}, 400, "length 129"),
        (VLLM(), "/v1/completions", {"prompt": [[128]]}, 400, "Token id 128 is out of vocabulary"),
        (VLLM(), "/v1/completions", {"prompt": ""}, 400, "must be provided and non-empty"),
        (LlamaCpp(), "/completion", {"prompt": "a" * 256}, 400, "exceed_context_size_error"),
        (LlamaCpp(), "/completion", {"prompt": []}, 400, "must not be empty"),
        (LlamaCppPython(), "/v1/completions", SCORED, 500, "string_type"),
        (LlamaCppPython(logits_all=False), "/v1/completions", {"prompt": "a", "logprobs": 1}, 500, "logits_all=False"),
        (SGLang(), "/generate", {"input_ids": [4] * 250, "sampling_params": {"max_new_tokens": 9}}, 400, "259 tokens"),
        (TextOnly(refuses=True), "/v1/chat/completions", {"messages": [], "logprobs": True}, 400, "not supported"),
    ],
)
def test_what_a_provider_refuses(dialect: Dialect, path: str, body: Any, status: int, said: str) -> None:
    with ScriptedServer(TABLE, dialect) as server:
        refusal = ask(server, path, body)
    assert refusal[0] == status
    assert said in json.dumps(refusal[1])


def test_llamacpp_ignores_echo_and_writes_one_token_where_none_was_asked() -> None:
    choice = completion(LlamaCpp(), {**SCORED, "temperature": 0, "model": "any"})
    assert choice["text"] == TABLE.tokenizer.decode(np.array(greedy(TOKENS, 1)))
    assert [one["id"] for one in choice["logprobs"]["content"]] == greedy(TOKENS, 1)


def test_llamacpp_python_echo_tells_each_token_after_itself_and_is_right_after_a_bos() -> None:
    asked = {"prompt": TEXT, "max_tokens": 2, "temperature": 0, "echo": True, "logprobs": 1}
    written = [*TOKENS, *greedy(TOKENS, 2)]
    told = completion(LlamaCppPython(), asked)["logprobs"]
    wrong = [float(row_V[token]) for row_V, token in zip(TABLE.log_probs(written), written, strict=True)]
    assert told["token_logprobs"] == pytest.approx([None, *wrong[1:-1]])
    assert len(told["tokens"]) == len(TOKENS) + 1
    bare = completion(LlamaCppPython(), {**asked, "echo": False})["logprobs"]
    assert bare["token_logprobs"] == pytest.approx(own(written)[-2:])
    told = completion(LlamaCppPython(), asked, OfTable(seed=3, begins=True))["logprobs"]
    assert told["tokens"][:-2] == list(TEXT)
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    assert told["token_logprobs"][1:-2] == pytest.approx(own([1, *TOKENS])[2:])


def test_a_slow_answer_does_not_outlive_its_server() -> None:
    gone: list[type[BaseException]] = []

    def wait(server: ScriptedServer) -> None:
        try:
            ask(server, "/v1/completions", SCORED)
        except (OSError, http.client.HTTPException) as error:
            gone.append(type(error))

    with ScriptedServer(TABLE, OpenAI(), faults=[Slow(600)]) as server:
        client = threading.Thread(target=wait, args=(server,))
        client.start()
        while server.most_at_once == 0:
            threading.Event().wait(0.001)
    client.join(timeout=20)
    assert len(gone) == 1


def test_an_error_of_the_imitation_itself_is_not_lost() -> None:
    with pytest.raises(KeyError), ScriptedServer(TABLE, OpenAI()) as server, pytest.raises(http.client.HTTPException):
        ask(server, "/v1/completions", {**SCORED, "prompt": "a\tb"})

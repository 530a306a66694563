"""tools/real_servers: its GGUF files, how it starts and ends servers, and how real servers answer.

The last need servers, which take minutes and gigabytes to install: they run if RALM_REAL_SERVERS names a folder that
`python -m tools.real_servers` has filled.
"""

import json
import os
import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ralm import ScoringSequence, load_language_model
from ralm.errors import ModelError

gguf = pytest.importorskip("gguf")

from tools.real_servers.gguf_file import write_gguf  # noqa: E402
from tools.real_servers.running import ServerError, running  # noqa: E402
from tools.real_servers.servers import SERVERS, Server  # noqa: E402

RALM_TINY = Path(__file__).parents[1] / "src" / "ralm" / "lm" / "ralm-tiny"
TEXT = "The list type has a method that sorts its items in place.\n\nIt takes two keyword arguments: ≠ and x."


def test_a_llama_is_the_same_model_for_another_reader_of_gguf(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    write_gguf(tiny_folders["llama"], tmp_path / "tiny.gguf")
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        found = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf")(tokens).logits
        expected = AutoModelForCausalLM.from_pretrained(tiny_folders["llama"])(tokens).logits
    torch.testing.assert_close(found, expected)
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.gguf"]


def test_queries_keys_and_values_of_ralm_tiny_are_taken_apart_by_heads(tmp_path: Path) -> None:
    write_gguf(RALM_TINY, tmp_path / "tiny.gguf")
    tensors = {one.name: one.data for one in gguf.GGUFReader(tmp_path / "tiny.gguf").tensors}
    state = AutoModelForCausalLM.from_pretrained(RALM_TINY).state_dict()
    # four heads of 64: q, k, v, q, k, v ...
    joint = state["gpt_neox.layers.2.attention.query_key_value.weight"].numpy()
    np.testing.assert_array_equal(tensors["blk.2.attn_q.weight"][64:128], joint[192:256])
    np.testing.assert_array_equal(tensors["blk.2.attn_v.weight"][:64], joint[128:192])
    np.testing.assert_array_equal(tensors["output.weight"], tensors["token_embd.weight"])


def test_what_llama_cpp_reads_besides_weights(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    """Whether the tokenizer adds a BOS; and a merge even in a vocabulary of bytes, as an empty list is rejected."""
    noted = []
    for number, folder in enumerate((tiny_folders["llama"], RALM_TINY)):
        write_gguf(folder, tmp_path / f"{number}.gguf")
        fields = gguf.GGUFReader(tmp_path / f"{number}.gguf").fields
        noted.append((fields["tokenizer.ggml.add_bos_token"].contents(), fields["tokenizer.ggml.merges"].contents()))
    assert noted[0] == (True, ["ÿ ÿ"])
    assert noted[1][0] is False


@pytest.mark.parametrize("family", ["gpt2", "bloom"])
def test_an_architecture_that_llama_cpp_computes_otherwise_is_refused(
    family: str, tiny_folders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=f"{family}.*cannot be written as GGUF here. Take a LLaMA"):
        write_gguf(tiny_folders[family], tmp_path / "tiny.gguf")
    assert [*tmp_path.iterdir()] == []


def test_scaled_positions_are_refused(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(tiny_folders["llama"])
    config.rope_parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "scaled")
    with pytest.raises(ModelError, match="scaled rotary positions"):
        write_gguf(tmp_path / "scaled", tmp_path / "scaled.gguf")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder in which the server called `files` counts as installed: it runs in the environment of the tests."""
    python = tmp_path / "files" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (tmp_path / "files" / "installed").write_text("", encoding="utf-8")
    return tmp_path


FILES = Server(
    name="files",
    packages=(),
    arguments=("-c", "import http.server as s; s.test(s.SimpleHTTPRequestHandler, port={port}, bind='127.0.0.1')"),
    ready="/",
)


def test_a_server_answers_inside_and_is_gone_afterwards(here: Path) -> None:
    with running(FILES, RALM_TINY, here) as name:
        url, _, model = name.partition("#")
        assert model == "ralm-tiny"
        port = int(url.removeprefix("http://127.0.0.1:").removesuffix("/v1"))
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_server_that_does_not_start_is_an_error_with_its_log(here: Path) -> None:
    broken = Server(name="files", packages=(), arguments=("-c", "raise SystemExit('no model: {name}')"))
    with (
        pytest.raises(ServerError, match=r"files ended with status 1; .*files\.log says why"),
        running(broken, RALM_TINY, here),
    ):
        pass
    assert (here / "files.log").read_text(encoding="utf-8") == "no model: ralm-tiny\n"


@pytest.mark.campaign
def test_a_server_that_cannot_be_installed_is_an_error(tmp_path: Path) -> None:
    missing = Server(name="missing", packages=("--no-index", "no-such-server"), arguments=())
    with pytest.raises(ServerError, match="missing could not be installed"), running(missing, RALM_TINY, tmp_path):
        pass
    assert not (tmp_path / "missing" / "installed").exists()


# How real servers answer


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    """URL#MODEL of each server, by its name."""
    folder = os.environ.get("RALM_REAL_SERVERS")
    if folder is None:
        pytest.skip("RALM_REAL_SERVERS names no folder of servers")
    with ExitStack() as stack:
        yield {name: stack.enter_context(running(server, RALM_TINY, Path(folder))) for name, server in SERVERS.items()}


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
    request = urllib.request.Request(
        base, json.dumps({"model": model, "temperature": 0, **body}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


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


def test_llama_cpp_ignores_echo(servers: dict[str, str], tokens: list[int]) -> None:
    body = {"prompt": tokens, "max_tokens": 1, "logprobs": 1, "echo": True}
    assert len(post(servers["llama.cpp"], "/completions", body)["choices"][0]["logprobs"]["content"]) == 1


def test_llama_cpp_python_reads_each_token_of_the_prompt_after_itself(servers: dict[str, str]) -> None:
    """Its echo has the right length and the wrong figures: only figures tell."""
    name = servers["llama-cpp-python"]
    after = post(name, "/completions", {"prompt": "The list", "max_tokens": 1, "logprobs": 1})["choices"][0]
    (expected,) = after["logprobs"]["token_logprobs"]
    prompt = "The list" + after["text"]
    echoed = post(name, "/completions", {"prompt": prompt, "max_tokens": 1, "logprobs": 1, "echo": True})
    found = echoed["choices"][0]["logprobs"]
    assert "".join(found["tokens"]) == prompt
    assert found["token_logprobs"][0] is None
    assert abs(found["token_logprobs"][-1] - expected) > 0.1


def test_transformers_ignores_logprobs(servers: dict[str, str]) -> None:
    body = {"prompt": "The list type", "max_tokens": 1, "logprobs": 2, "echo": True}
    (choice,) = post(servers["transformers"], "/completions", body)["choices"]
    assert choice["text"] == " of"
    assert "logprobs" not in choice

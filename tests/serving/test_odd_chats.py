"""Thousands of odd chats, made from the server's own description of itself: never an error of the server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ralm.lm.registry import ModelOptions, load_language_model
from ralm.serving.options import Limits, ServeOptions
from ralm.serving.service import Service
from tests.chat_models import save_chat_model
from tests.serving.served import serving
from tests.serving.test_odd_requests import ANYTHING, COUNT, check, described, posted, resolved, values_of

PATH = "/v1/chat/completions"
USUAL: dict[str, Any] = {"model": "tiny-chat", "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 2}
LIMITS = Limits(texts=3, new_tokens=4, documents=2)


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory, index: Path) -> Iterator[httpx.Client]:
    """A client of a server with a chat model, which writes little."""
    folder = save_chat_model(tmp_path_factory.mktemp("model") / "tiny-chat")
    model = load_language_model(str(folder), ModelOptions(dtype="float32"))
    service = Service(model, ServeOptions(limits=LIMITS), folders={"few": index})
    with serving(service) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_odd_bodies(chats: httpx.Client) -> None:
    whole = described(chats)
    schema = whole["paths"][PATH]["post"]["requestBody"]["content"]["application/json"]["schema"]
    fields = {name: values_of(one, whole) | ANYTHING for name, one in resolved(schema, whole)["properties"].items()}
    some = st.fixed_dictionaries({}, optional=fields)
    roles = st.sampled_from(["system", "user", "assistant", "developer", "tool", "", "\x00", "<s>"])
    texts = st.sampled_from(["Who?", "", " \n", "</s>", "<s>user: a</s>", "\u202e", "sea " * 300, "~1.0~", "{{ a }}"])
    message = st.fixed_dictionaries({"role": roles, "content": texts | ANYTHING})
    said = st.builds(lambda messages: {**USUAL, "messages": messages}, st.lists(message, max_size=5))
    changed = st.builds(lambda odd: {**USUAL, **odd}, some)
    few = st.builds(lambda name, odd: {**USUAL, name: odd.get(name)}, st.sampled_from(sorted(fields)), some)
    answered = 0

    @settings(max_examples=COUNT, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(body=said | few | changed | ANYTHING)
    def ask(body: Any) -> None:
        nonlocal answered
        content = json.dumps(body).encode()
        answer = posted(chats, PATH, content)
        check(answer, content)
        assert '"server_error"' not in answer.text  # nor in a stream
        answered += answer.status_code == 200

    ask()
    assert answered > COUNT // 20

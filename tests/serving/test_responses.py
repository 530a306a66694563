"""OpenAI's responses, by its own client: they are chats in another form, with passages that `file_search` found."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from ralm.lm.registry import ModelOptions, load_language_model
from ralm.serving.service import Service
from tests.chat_models import save_chat_model
from tests.serving.served import DOCUMENTS, save_index, serving
from tests.serving.test_chats import CONVERSATIONS, CORPUS, QUESTION, SAID

pytestmark = pytest.mark.filterwarnings("ignore")
TOOL: dict[str, Any] = {"type": "file_search", "vector_store_ids": ["texts"]}
ASKED: dict[str, Any] = {"model": "tiny-chat", "temperature": 0, "max_output_tokens": 24}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder: Path = tmp_path_factory.mktemp("responses")
    model = load_language_model(str(save_chat_model(folder / "tiny-chat")), ModelOptions(dtype="float32"))
    folders = {"texts": save_index(folder / "index", CORPUS), "few": save_index(folder / "few", DOCUMENTS)}
    with (
        serving(Service(model, folders=folders)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def created(client: openai.OpenAI, said: Any, **more: Any) -> Any:
    return client.responses.create(**ASKED, input=said, **{"tools": [TOOL], **more})


def test_a_response_is_the_answer_of_a_chat(client: openai.OpenAI) -> None:
    cited = 0
    for said in CONVERSATIONS:
        chat = client.chat.completions.create(model="tiny-chat", messages=said, temperature=0, max_tokens=24)
        response = created(client, said)
        call, message = response.output
        assert (call.type, call.queries, call.results) == ("file_search_call", [said[-1]["content"]], None)
        assert response.output_text == chat.choices[0].message.content
        given = [one.url_citation for one in chat.choices[0].message.annotations or []]
        found = message.content[0].annotations
        assert [(one.type, one.index, one.filename) for one in found] == [
            ("file_citation", one.end_index, one.title) for one in given
        ]
        assert chat.usage is not None
        assert response.usage.output_tokens == chat.usage.completion_tokens
        assert response.usage.input_tokens == chat.usage.prompt_tokens
        assert response.status == ("completed" if chat.choices[0].finish_reason == "stop" else "incomplete")
        cited += len(found)
    assert cited > 0


def test_a_stream_is_the_whole_response_in_pieces(client: openai.OpenAI) -> None:
    for said in CONVERSATIONS[:2]:
        whole = created(client, said)
        events = [*created(client, said, stream=True)]
        assert [one.sequence_number for one in events] == [*range(len(events))]
        assert "".join(one.delta for one in events if one.type == "response.output_text.delta") == whole.output_text
        last = events[-1]
        assert last.type == f"response.{whole.status}"
        assert last.response.output_text == whole.output_text
        assert last.response.output[-1].content[0].annotations == whole.output[-1].content[0].annotations
        assert [one.type for one in events].count("response.output_text.annotation.added") == len(
            whole.output[-1].content[0].annotations
        )
        kinds = {one.type for one in events}
        assert {"response.created", "response.file_search_call.completed", "response.content_part.done"} <= kinds
    tools: list[Any] = [TOOL]
    with client.responses.stream(**ASKED, input="Who keeps the sheep?", tools=tools) as stream:
        assert next(iter(stream)).type == "response.created"


def test_what_the_tool_chooses(client: openai.OpenAI) -> None:
    include: Any = ["file_search_call.results"]
    other: dict[str, Any] = {**TOOL, "vector_store_ids": ["few"], "max_num_results": 2}
    results = created(client, "Which dog keeps sheep?", tools=[other], include=include).output[0].results
    assert [one.file_id for one in results] == ["hill", "night"]
    assert results[0].text == DOCUMENTS[0].text
    filtered = {**other, "filters": {"type": "ne", "key": "id", "value": "hill"}}
    results = created(client, "Which dog keeps sheep?", tools=[filtered], include=include).output[0].results
    assert results[0].file_id == "night"


def test_instructions_and_earlier_turns(client: openai.OpenAI) -> None:
    with_system = created(client, SAID)
    assert created(client, SAID[1:], instructions=SAID[0]["content"]).output_text == with_system.output_text
    before = created(client, QUESTION)
    turns = [*QUESTION, *[one.model_dump() for one in before.output], {"role": "user", "content": "Who sings?"}]
    assert created(client, turns).status in ("completed", "incomplete")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"tools": [{**TOOL, "vector_store_ids": ["none"]}]}, "there is no vector store 'none' here; there is: texts"),
        ({"tools": [{**TOOL, "vector_store_ids": ["texts", "few"]}]}, "give one `file_search` with one of"),
        ({"previous_response_id": "resp_1"}, "`previous_response_id` is not supported: leave it out."),
        ({"input": " "}, "the last message of the user is empty"),
        ({"tools": [{"type": "web_search"}]}, "`tools.0.type`"),
        ({"model": "other"}, "the model 'other' is not served"),
    ],
)
def test_bad_responses(client: openai.OpenAI, more: dict[str, Any], said: str) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.responses.create(**{**ASKED, "input": "Who sings?", "tools": [TOOL], **more})
    assert said in caught.value.message

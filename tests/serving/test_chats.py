"""POST /v1/chat/completions over loopback, asked by the clients that people have: as the library answers."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

from ralm.answering.answerer import Answerer, SourcedAnswer
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import Conversation, open_prompt
from ralm.errors import InputError, UsageError
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import WritingModel
from ralm.reading.mixture import PosteriorWeights, UniformWeights
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.reading.readers import Concatenation, Ensemble
from ralm.reading.sources import FromRetriever
from ralm.records import Document, Message
from ralm.serving.answers import text_key
from ralm.serving.options import ServeOptions
from tests.chat_models import POSITIONS
from tests.fakes import CountingModel, WordTokenizer
from tests.serving.served import local, save_index, serving, tiny

CORPUS = [
    Document("hill", "The Hill", "The dog keeps the sheep on the hill.", metadata={"url": "https://a.example/hill"}),
    Document("sea", "The Sea", "The whales sing in the sea.", metadata={"url": "/etc/passwd"}),
    Document("town", "The Town", "Fish and bread are sold by the sea."),
]
SAID: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Tell me of the sea."},
    {"role": "assistant", "content": "It is deep."},
    {"role": "user", "content": "Who sings in the sea?"},
]
AT_LEAST = "`messages` has 1,000,"
IMAGE = {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
QUESTION: list[Any] = [{"role": "user", "content": "Who keeps the sheep?"}]
CONVERSATIONS = (SAID, QUESTION, SAID[3:], SAID[1:2])
READERS: list[tuple[dict[str, Any], Parts]] = [
    ({}, IN_CONTEXT),
    (
        {"reader": "ensemble", "documents": 2, "mixer": "uniform"},
        Parts(reader=Ensemble(documents=2), mixer=UniformWeights()),
    ),
    (
        {"reader": "ensemble", "documents": 2, "mixer": "posterior:eta=2"},
        Parts(reader=Ensemble(documents=2), mixer=PosteriorWeights(eta=2.0)),
    ),
    ({"reader": "concatenation", "documents": 2}, Parts(reader=Concatenation(documents=2))),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_index(tmp_path_factory.mktemp("chats") / "index", CORPUS)


@pytest.fixture(scope="module")
def url(chat_model: WritingModel, index: Path) -> Iterator[str]:
    with serving(local(chat_model, folders={"texts": index})) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def answered(
    chat_model: WritingModel, index: Path, said: list[Any], parts: Parts = IN_CONTEXT, **options: Any
) -> SourcedAnswer:
    """What the library answers."""
    drawn = AnswerOptions(**{"stop": (), "new_tokens": 24, **options})
    answerer = Answerer(chat_model, open_prompt("chat"), FromRetriever.of_index(index), parts=parts, options=drawn)
    return answerer.stream(Conversation(messages_of(said))).with_sources()


def messages_of(said: list[Any]) -> list[Message]:
    return [Message(one["role"], one["content"]) for one in said]


def posted(url: str, said: list[Any], **more: Any) -> httpx.Response:
    """The response to a chat that is no client's, with lone surrogates as they are."""
    content = json.dumps({"model": "tiny-chat", "messages": said, **more})
    return httpx.post(f"{url}/v1/chat/completions", content=content, headers={"Content-Type": "application/json"})


def refused(url: str, said: list[Any], **more: Any) -> Any:
    """The error of a chat that is rejected."""
    found = posted(url, said, **more)
    assert found.status_code in (400, 404), found.text
    return found.json()["error"]


def asked(client: openai.OpenAI, said: list[Any], **more: Any) -> Any:
    return client.chat.completions.create(
        model="tiny-chat", messages=said, **{"max_tokens": 24, "temperature": 0, **more}
    )


@pytest.mark.parametrize(("chosen", "parts"), READERS)
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "seed": 5, "top_p": 0.9}])
@pytest.mark.parametrize("said", [SAID, QUESTION])
def test_the_answer_is_that_of_the_library(
    client: openai.OpenAI,
    chat_model: WritingModel,
    index: Path,
    chosen: dict[str, Any],
    parts: Parts,
    sampling: dict[str, Any],
    said: list[Any],
) -> None:
    expected = answered(chat_model, index, said, parts, **sampling)
    found = asked(client, said, logprobs=True, extra_body={"ralm": chosen}, **sampling)
    [choice] = found.choices
    assert choice.message.content == expected.answer.text
    assert choice.message.role == "assistant"
    tokens = choice.logprobs.content
    assert [one.logprob for one in tokens] == pytest.approx([one.log_prob for one in expected.answer.tokens], abs=1e-4)
    assert found.usage.completion_tokens == len(tokens) == len(expected.answer.tokens)
    chat: Any = full_tokenizer(chat_model.tokenizer).encode_chat(messages_of(said))
    assert found.usage.prompt_tokens > len(chat[0]) * (2 if "ensemble" in str(chosen) else 1), "with passages"
    told = found.model_extra["ralm"]
    assert told["index"] == "texts"
    [own] = told["choices"]
    assert own["gains"] == pytest.approx(expected.text.gain_T.tolist(), abs=1e-3)
    assert own["gain"]["nats"] == pytest.approx(expected.text.gain.nats, abs=1e-3)
    assert [one["passage"] for one in own["sources"]] == [one.passage.number for one in expected.sources]
    shares = expected.text.provenance.posteriors_TK
    np.testing.assert_allclose([one["posteriors"] for one in own["tokens"]], shares, atol=1e-4)
    for one, other in zip(own["sources"], expected.sources, strict=True):
        assert one["known"] == other.known
        measured = (pytest.approx(other.share, abs=1e-3), pytest.approx(other.gain, abs=1e-2))
        assert (one["share"], one["gain"]) == (measured if other.known == "measured" else (None, None))
    assert {one["passage"] for one in told["passages"]} == {one.passage.number for one in expected.sources}
    assert {one["passage"] for one in found.model_extra["search_results"]} == {
        one["passage"] for one in told["passages"]
    }


@pytest.mark.parametrize(("chosen", "parts"), READERS)
def test_annotations_are_the_citations_of_the_library(
    client: openai.OpenAI, url: str, chat_model: WritingModel, index: Path, chosen: dict[str, Any], parts: Parts
) -> None:
    cited = 0
    for said in CONVERSATIONS:
        expected = answered(chat_model, index, said, parts)
        [choice] = asked(client, said, extra_body={"ralm": chosen}).choices
        spans = sorted((span, one.passage) for one in expected.sources for span in one.answer_spans)
        found = [one.url_citation for one in choice.message.annotations]
        assert [(one.start_index, one.end_index) for one in found] == [span for span, _ in spans]
        for one, (_, passage) in zip(found, spans, strict=True):
            assert one.title == passage.title
            web = passage.metadata.get("url") if passage.document_id == "hill" else None
            own = f"{url}/passages/texts?document={passage.document_id}&text={text_key(passage)}"
            assert one.url == (web or own)
            assert (one.document_id, one.place) == (passage.document_id, passage.place)
            read = httpx.get(own).json()
            assert (read["text"], read["document_id"]) == (passage.text, passage.document_id)
            page = httpx.get(own, headers={"Accept": "text/html,*/*"})
            assert page.headers["content-type"].startswith("text/html")
            assert html.escape(passage.text) in page.text
            cited += 1
    assert cited > 0


@pytest.mark.parametrize(("chosen", "parts"), READERS)
def test_a_stream_is_the_same_answer(client: openai.OpenAI, chosen: dict[str, Any], parts: Parts) -> None:
    more: dict[str, Any] = {"logprobs": True, "n": 2, "temperature": 0.9, "seed": 3, "extra_body": {"ralm": chosen}}
    whole = asked(client, SAID, **more)
    pieces = list(asked(client, SAID, stream=True, stream_options={"include_usage": True}, **more))
    assert {one.object for one in pieces} == {"chat.completion.chunk"}
    assert pieces[-1].usage == whole.usage
    assert not pieces[-1].choices
    for number, choice in enumerate(whole.choices):
        own = [one for piece in pieces for one in piece.choices if one.index == number]
        assert own[0].delta.role == "assistant"
        assert "".join(one.delta.content or "" for one in own) == choice.message.content
        assert [one.finish_reason for one in own] == [None] * (len(own) - 1) + [choice.finish_reason]
        listed = [token for one in own if one.logprobs for token in one.logprobs.content]
        assert listed == choice.logprobs.content
        annotations = (own[-1].delta.model_extra or {}).get("annotations", [])
        assert annotations == [one.model_dump() for one in choice.message.annotations]
    told = pieces[-2].model_extra
    assert told["search_results"] == whole.model_extra["search_results"]
    for one, other in zip(told["ralm"]["choices"], whole.model_extra["ralm"]["choices"], strict=True):
        assert one["sources"] == other["sources"]
    tokens = [token for piece in pieces[:-2] for token in _tokens_of(piece, 0)]
    credited = told["ralm"]["choices"][0].get("tokens", [])
    assert bool(credited) == ("concatenation" in chosen.get("reader", ""))  # whose passages are told apart at the end
    assert (credited or tokens) == whole.model_extra["ralm"]["choices"][0]["tokens"]
    assert [one["log_prob"] for one in tokens] == [one["log_prob"] for one in credited or tokens]


def _tokens_of(piece: Any, number: int) -> list[Any]:
    choices = (piece.model_extra or {}).get("ralm", {}).get("choices", [])
    return [token for one in choices if one["index"] == number for token in one.get("tokens", [])]


def test_choices_have_seeds_of_their_own(client: openai.OpenAI, chat_model: WritingModel, index: Path) -> None:
    found = asked(client, SAID, n=3, temperature=1.0, seed=7)
    texts = [one.message.content for one in found.choices]
    assert texts == [answered(chat_model, index, SAID, temperature=1.0, seed=7 + n).answer.text for n in range(3)]
    assert len(set(texts)) == 3


def test_without_an_index_it_is_the_plain_conversation(client: openai.OpenAI, chat_model: WritingModel) -> None:
    found = asked(client, SAID, extra_body={"ralm": {"index": None}})
    options = AnswerOptions(new_tokens=24, stop=())
    said = messages_of(SAID)
    [expected] = Answerer(chat_model, open_prompt("chat"), options=options).answers([Conversation(said)])
    assert found.choices[0].message.content == expected.answer.text
    assert found.choices[0].message.annotations == []
    assert "search_results" not in found.model_extra
    chat = full_tokenizer(chat_model.tokenizer).encode_chat(said)
    assert chat is not None
    assert found.usage.prompt_tokens == len(chat[0])


def test_an_answer_ends_for_a_reason(client: openai.OpenAI) -> None:
    whole = asked(client, SAID)
    text = whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "length"
    stopped = asked(client, SAID, stop=[text[3:5], "never there"]).choices[0]
    assert (stopped.finish_reason, stopped.message.content) == ("stop", text[: text.index(text[3:5])])
    by_default = client.chat.completions.create(model="tiny-chat", messages=SAID, temperature=0)
    assert by_default.usage is not None
    assert by_default.usage.completion_tokens <= POSITIONS // 4


def test_sources_as_text_for_clients_that_drop_fields(client: openai.OpenAI, url: str) -> None:
    for said in CONVERSATIONS:
        plain = asked(client, said)
        more = asked(client, said, extra_body={"ralm": {"sources": "text"}})
        text, annotations = plain.choices[0].message.content, plain.choices[0].message.annotations
        assert more.choices[0].message.annotations == annotations
        told = more.choices[0].message.content.removeprefix(text)
        streamed = asked(client, said, stream=True, extra_body={"ralm": {"sources": "text"}})
        assert "".join(one.choices[0].delta.content or "" for one in streamed) == text + told
        assert bool(told) == bool(annotations)
        if annotations:
            assert told.startswith("\n\nSources:\n[1] ")
            assert {one.url_citation.url for one in annotations} == {
                line.split(": ", 1)[1] for line in told.split("\n")[3:]
            }
            return
    pytest.fail("no answer cites anything")


def test_gain_can_be_left_out(client: openai.OpenAI) -> None:
    found = asked(client, SAID, extra_body={"ralm": {"gain": False}})
    assert found.choices[0].message.annotations == []
    assert "gains" not in found.model_extra["ralm"]["choices"][0]
    assert found.choices[0].message.content == asked(client, SAID).choices[0].message.content


def test_langchain_chats(url: str, client: openai.OpenAI) -> None:
    chat = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model="tiny-chat", temperature=0, max_tokens=24)  # type: ignore[arg-type, call-arg]
    said = [
        SystemMessage("Be brief."),
        HumanMessage("Tell me of the sea."),
        AIMessage("It is deep."),
        HumanMessage([{"type": "text", "text": "Who sings in the sea?"}]),
    ]
    expected = asked(client, SAID).choices[0].message.content
    assert chat.invoke(said).content == expected
    assert "".join(str(piece.content) for piece in chat.stream(said)) == expected
    plain: dict[str, Any] = {"extra_body": {"ralm": {"index": None}}}
    assert chat.bind(**plain).invoke(said).content == asked(client, SAID, **plain).choices[0].message.content


def test_messages_as_clients_send_them(client: openai.OpenAI) -> None:
    first = asked(client, SAID[1:2])
    parts = [{"type": "text", "text": "Who sings"}, {"type": "text", "text": "in the sea?"}]
    message = first.choices[0].message
    said = [{"role": "developer", "content": "Be brief."}, SAID[1], message, {"role": "user", "content": parts}]
    plain = [*SAID[:2], {"role": "assistant", "content": message.content}]
    plain += [{"role": "user", "content": "Who sings\nin the sea?"}]
    assert asked(client, said).choices == asked(client, plain).choices


@pytest.mark.parametrize(
    ("more", "param", "told"),
    [
        ({"tools": {}}, "tools", "`tools` is not supported"),
        ({"top_logprobs": 2}, "top_logprobs", "`top_logprobs` has no effect without `logprobs`"),
        ({"n": 0}, "n", "must be greater than or equal to 1"),
        ({"max_tokens": 0}, "max_tokens", "from 1 to"),
        ({"max_tokens": 512}, "messages", "the limit is 512: send at most 0 tokens, or lower `max_tokens`"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "differ"),
        ({"max_tokens": 480}, "messages", r"has \d+ tokens and `max_tokens` is 480"),
        ({"said": []}, "messages", "needs a message with the role user"),
        ({"said": [SAID[1], SAID[3]]}, "messages", "rejects these messages: roles must alternate"),
        ({"said": [{"role": "user", "content": " "}]}, "messages", "is empty"),
        ({"said": [{"role": "tool", "content": "5"}]}, "messages.0.role", "must be .system."),
        ({"said": [{**SAID[1], "tool_calls": [{}]}]}, "messages.0.tool_calls", "is not supported"),
        ({"said": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content.0", "the type image_url; only text is"),
        ({"said": [{"role": "user", "content": "\ud800"}]}, None, "lone surrogate"),
        ({"said": [{"role": "user</s>", "content": "a"}]}, "messages.0.role", "must be .system., .developer"),
        ({"ralm": {"stride": 4}}, "ralm.stride", "has no effect in a chat"),
        ({"ralm": {"rerank": "oracle"}}, None, "looks at the text to be predicted"),
        ({"ralm": {"sources": "footnotes"}}, "ralm.sources", "sources"),
        ({"ralm": {"query": " "}}, "ralm.query", "is empty"),
        ({"said": [{"role": "user", "contents": "a"}]}, "messages", "is empty"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused(url: str, more: dict[str, Any], param: str | None, told: str, stream: bool) -> None:
    error = refused(url, **{"said": SAID, "stream": stream or None, **more})
    assert error["param"] == param, error
    assert re.search(told, error["message"]), error
    assert error["type"] in ("invalid_request_error", "not_found_error")


def test_a_conversation_that_does_not_fit(url: str, client: openai.OpenAI, chat_model: WritingModel) -> None:
    def said(length: int) -> list[Any]:
        return [{"role": "user", "content": "s" * length}]

    chat = full_tokenizer(chat_model.tokenizer).encode_chat([Message("user", "s")])
    assert chat is not None
    most = POSITIONS - len(chat[0])  # characters beside the one, with nothing left for an answer
    for more, told in ((0, f"`messages` has {POSITIONS:,} tokens and `max_tokens` is 1,"), (10**6, AT_LEAST)):
        error = refused(url, said(most + 1 + more))
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        assert told in error["message"]
    long_ago = [*said(10**6), {"role": "assistant", "content": "a"}, *said(1)]
    assert AT_LEAST in refused(url, long_ago)["message"]
    told = refused(url, [{"role": "system", "content": "s" * 300_000}, *said(1)])["message"]
    assert told == "`messages` has 300,001 bytes, and the limit is 262,144: send less at once."
    plain: dict[str, Any] = {"extra_body": {"ralm": {"index": None}}}
    fits = client.chat.completions.create(model="tiny-chat", messages=said(most - 9), temperature=0, **plain)
    assert fits.usage is not None
    assert (fits.usage.prompt_tokens, fits.usage.completion_tokens) == (POSITIONS - 10, 10)
    with_passage = client.chat.completions.create(model="tiny-chat", messages=said(most - 39), temperature=0)
    assert with_passage.choices[0].finish_reason == "length"


def test_a_passage_that_there_is_not(url: str) -> None:
    for path in ("texts?document=hill&text=0", "texts?document=%00&text=0", "other?document=hill&text=0"):
        found = httpx.get(f"{url}/passages/{path}", headers={"Accept": "text/html"})
        assert found.status_code == 404, path
    assert httpx.get(f"{url}/passages/texts?document=hill").status_code == 400


def test_a_model_without_a_chat_template(index: Path) -> None:
    body: dict[str, Any] = {"model": "ralm-tiny", "max_tokens": 8, "temperature": 0}
    with serving(local(tiny(), folders={"texts": index})) as url:
        message = refused(url, QUESTION, **body)["message"]
        assert "ralm-tiny has no chat template: use /v1/completions" in message
    with serving(local(tiny(), ServeOptions(prompt="replug"), folders={"texts": index})) as url:
        source, options = FromRetriever.of_index(index), AnswerOptions(new_tokens=8)
        answerer = Answerer(tiny(), open_prompt("replug"), source, options=options)
        [expected] = answerer.answers([QUESTION[0]["content"]])
        assert posted(url, QUESTION, **body).json()["choices"][0]["message"]["content"] == expected.answer.text
        assert "has 4 messages, and this prompt asks one question" in refused(url, SAID, **body)["message"]


def test_the_likeliest_tokens_are_listed(client: openai.OpenAI, chat_model: WritingModel, index: Path) -> None:
    plain = asked(client, SAID, logprobs=True)
    found = asked(client, SAID, logprobs=True, top_logprobs=3)
    assert found.choices[0].message == plain.choices[0].message
    expected = answered(chat_model, index, SAID, top_logprobs=3)
    listed = found.choices[0].logprobs.content
    assert len(listed) == len(expected.answer.tokens)
    for one, token in zip(listed, expected.answer.tokens, strict=True):
        assert [other.logprob for other in one.top_logprobs] == pytest.approx(
            [value for _, value in token.top_logprobs]
        )
        assert one.top_logprobs[0].token == one.token  # greedy
        assert one.top_logprobs[0].logprob == one.logprob
        assert one.bytes is None or bytes(one.bytes).decode() == one.token
    assert all(one.top_logprobs == [] for one in plain.choices[0].logprobs.content)


def test_prompts_that_are_none_of_chats(chat_model: WritingModel) -> None:
    with pytest.raises(UsageError, match="chat-choice is for questions with choices"):
        local(chat_model, ServeOptions(prompt="chat-choice"))
    with pytest.raises(InputError, match="is unknown"):
        local(chat_model, ServeOptions(prompt="absent"))


def test_a_model_that_gives_text_alone_is_not_served() -> None:
    with pytest.raises(UsageError, match="words does not return the log-probabilities of all next tokens"):
        local(CountingModel(WordTokenizer(), tier="text", name="words", max_length=400))

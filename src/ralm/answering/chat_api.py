"""Asks a chat API: a question is one request with its passages, and the answer is judged by its text alone.

Nothing but the request is asked of the server: no tokenizer, no log-probabilities.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

from pydantic import JsonValue

from ralm.answering.citations import AnswerSource
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import Conversation, QuestionPrompt
from ralm.errors import UsageError
from ralm.lm.api import answers, http
from ralm.lm.api.client import Client
from ralm.lm.api.endpoint import ApiOptions, endpoint_of
from ralm.protocols import Reader
from ralm.reading.sources import FromRetriever
from ralm.records import Passage


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAnswer:
    """The text of an answer and its sources, in the order of the prompt."""

    question: str
    text: str
    sources: Sequence[AnswerSource]

    def as_json(self) -> dict[str, JsonValue]:
        """Return everything about the answer."""
        sources = [source.with_passage() for source in self.sources]
        return {"question": self.question, "answer": self.text, "sources": sources}


class ChatApi:
    """A model that answers messages; close its `client`. OpenAI's get a temperature only if it is `named`."""

    def __init__(self, name: str, options: ApiOptions | None = None, named: Container[str] = ()) -> None:
        self.client = Client(endpoint_of(name), options)
        endpoint = self.client.endpoint
        self._sends_temperature = "temperature" in named or not endpoint.is_openai
        if not endpoint.is_url:
            self.client.identity = sha256(f"{endpoint.url} {endpoint.model}".encode()).hexdigest()[:16]

    def answers(
        self,
        questions: Sequence[str],
        prompt: QuestionPrompt,
        source: FromRetriever | None,
        reader: Reader,
        options: AnswerOptions,
    ) -> Iterator[TextAnswer]:
        """Yield the answers to questions in order; UsageError if one is empty, ServerError if the server fails."""
        for question in questions:
            if not question.strip():
                raise UsageError("the question is empty: ask with at least one word.")
        passages = [_passages(question, source, reader) for question in questions]
        requests = (self._request(*asked, prompt, options) for asked in zip(questions, passages, strict=True))
        texts = self.client.answers(requests)
        for question, shown, text in zip(questions, passages, texts, strict=True):
            without = str(prompt.same_words(several=len(shown) > 1).text(question, ()))
            sources = AnswerSource.of_text(text, shown, without, numbered=prompt.numbers_passages)
            yield TextAnswer(question=question, text=text, sources=sources)

    def _request(
        self, question: str, passages: Sequence[Passage], prompt: QuestionPrompt, options: AnswerOptions
    ) -> http.ApiRequest:
        asked = Conversation.of(question).after(prompt.system).with_question(str(prompt.text(question, passages)))
        endpoint = self.client.endpoint
        body: dict[str, JsonValue] = {
            "model": endpoint.model,
            "messages": [{"role": message.role, "content": message.content} for message in asked.messages],
            endpoint.limit_field: options.new_tokens,
        }
        if self._sends_temperature:
            body["temperature"] = options.temperature
        if options.temperature > 0:
            body |= {"seed": options.seed, "top_p": options.top_p}
        if options.stop:
            body["stop"] = [*options.stop]
        tokens = sum(len(message.content.encode()) for message in asked.messages)
        return http.ApiRequest("/chat/completions", body, tokens, options.new_tokens, parse=_answer_text)


def _passages(question: str, source: FromRetriever | None, reader: Reader) -> list[Passage]:
    if source is None:
        return []
    return [source.passages[number] for number, _ in source.search([question], reader.hits).of(0)]


def _answer_text(answer: http.JsonObject) -> str:
    text = answers.answer_field(answer, "choices", 0, "message", "content")
    if not isinstance(text, str):
        raise answers.unexpected("the server returns no text")
    return text

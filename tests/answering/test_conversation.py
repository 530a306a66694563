"""Conversations through a model's chat template: against the plain loop, what is cut, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from ralm.answering.answerer import Answerer, SourcedAnswer
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import Conversation, open_prompt
from ralm.errors import ChatError, UsageError
from ralm.lm.api.tokenizers import PlainTokenizer
from ralm.lm.registry import ModelOptions, load_language_model
from ralm.lm.tokenizer import full_tokenizer
from ralm.protocols import WritingModel
from ralm.reading.mixture import UniformWeights
from ralm.reading.parts import IN_CONTEXT, Parts
from ralm.reading.readers import Concatenation, Ensemble
from ralm.reading.sources import FromRetriever
from ralm.records import Message, Passage
from ralm.reranking.oracle import Oracle
from ralm.reranking.zero_shot import ZeroShot
from tests.chat_models import chat, save_chat_model
from tests.fakes import SharedWordsRetriever

PASSAGES = [
    Passage(0, "hill", "The Hill", "The dog keeps the sheep </s> on the hill."),
    Passage(1, "sea", "The Sea", "The whales sing in the sea."),
    Passage(2, "town", "The Town", "Fish and bread are sold by the sea."),
]
SAID = chat("Tell me of the sea.", "It is </s> deep.", "Who sings in the sea by night?", system="Be brief.")
PROMPT = open_prompt("chat")
OPTIONS = AnswerOptions(new_tokens=8, stop=())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="module")
def model(folder: Path) -> WritingModel:
    return load_language_model(str(folder), ModelOptions(dtype="float32"))


@pytest.fixture
def retriever() -> SharedWordsRetriever:
    return SharedWordsRetriever(PASSAGES)


@pytest.fixture
def source(retriever: SharedWordsRetriever) -> FromRetriever:
    return FromRetriever(retriever, PASSAGES)


def prompt_ids(folder: Path, messages: list[Message], passages: list[int], *, several: bool = False) -> list[int]:
    """The ids of a chat with passages in its last message, as transformers and the prompt file say; marks as text. The
    words are those for one passage, or for `several`, also around none."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    own = [PASSAGES[number] for number in passages]
    text = str(PROMPT.text(messages[-1].content, own, several=several or len(own) > 1))
    messages = [*messages[:-1], Message("user", text)]
    hidden = [{"role": one.role, "content": one.content.replace("</s>", "\x00")} for one in messages]
    ids = tokenizer.apply_chat_template(hidden, add_generation_prompt=True, return_dict=False)
    [zero], written = tokenizer.encode("\x00", add_special_tokens=False), [*map(ord, "</s>")]
    spelled = tokenizer.convert_tokens_to_ids([chr(one) for one in written])
    return [token for one in ids for token in (spelled if one == zero else [one])]


def log_probs(model: WritingModel, prompt: list[int], answer: SourcedAnswer) -> np.ndarray:
    """The log-probability of each token of an answer, one forward pass for each."""
    tokens = [token.token for token in answer.answer.tokens]
    texts = [np.array(prompt + tokens[:place], dtype=np.int64) for place in range(len(tokens))]
    return np.array(
        [
            model.continuations().next_tokens([text]).log_probs_BC[0][token]
            for text, token in zip(texts, tokens, strict=True)
        ]
    )


@pytest.mark.parametrize(
    ("parts", "prompt_prefixes"),
    [
        (IN_CONTEXT, [[1]]),
        (Parts(reader=Ensemble(documents=2), mixer=UniformWeights()), [[1], [2]]),
        (Parts(reader=Concatenation(documents=2)), [[1, 2]]),
    ],
)
def test_an_answer_in_a_conversation_is_that_of_the_plain_loop(
    folder: Path, model: WritingModel, source: FromRetriever, parts: Parts, prompt_prefixes: list[list[int]]
) -> None:
    stream = Answerer(model, PROMPT, source, parts=parts, options=OPTIONS).stream(Conversation(SAID))
    text = "".join(piece.text for _, piece in stream)
    answer = stream.with_sources()
    assert answer.answer.text == text
    assert len(answer.answer.tokens) > 0
    assert stream.prompt_tokens == sum(len(prompt_ids(folder, SAID, numbers)) for numbers in prompt_prefixes)
    log_probs_KT = np.stack(
        [log_probs(model, prompt_ids(folder, SAID, prompt_prefix), answer) for prompt_prefix in prompt_prefixes]
    )
    mixed_T = np.log(np.exp(log_probs_KT.astype(np.float64)).mean(axis=0))
    several = prompt_prefixes == [[1, 2]]
    baseline_T = log_probs(model, prompt_ids(folder, SAID, [], several=several), answer)
    np.testing.assert_allclose(answer.text.log_probs_T, mixed_T, atol=1e-3)
    np.testing.assert_allclose(answer.text.baseline_T, baseline_T, atol=1e-3)
    assert np.abs(mixed_T - baseline_T).max() > 0.1
    if not several:
        expected = (np.exp(log_probs_KT) / np.exp(log_probs_KT).sum(axis=0)).T
        np.testing.assert_allclose(answer.text.provenance.posteriors_TK, expected, atol=1e-3)
    assert [one.passage.number for one in answer.sources] == [
        number for prompt_prefix in prompt_prefixes for number in prompt_prefix
    ]


def test_passages_of_one_prompt_share_the_credit_as_an_ensemble_would(
    folder: Path, model: WritingModel, source: FromRetriever
) -> None:
    reader = Concatenation(documents=2)
    [answer] = Answerer(model, PROMPT, source, parts=Parts(reader=reader), options=OPTIONS).answers(
        [Conversation(SAID)]
    )
    log_probs_KT = np.stack(
        [log_probs(model, prompt_ids(folder, SAID, [number], several=True), answer) for number in (1, 2)]
    )
    expected = (np.exp(log_probs_KT) / np.exp(log_probs_KT).sum(axis=0)).T
    np.testing.assert_allclose(answer.text.provenance.posteriors_TK, expected, atol=1e-3)
    assert [one.share for one in answer.sources] == pytest.approx(expected.mean(axis=0), abs=1e-3)
    assert sum(one.gain or 0 for one in answer.sources) == pytest.approx(answer.text.gain.nats, abs=1e-3)


def test_several_answers_to_one_conversation(model: WritingModel, source: FromRetriever) -> None:
    options = AnswerOptions(new_tokens=8, stop=(), temperature=1.0)
    streams = Answerer(model, PROMPT, source, options=options).stream(Conversation(SAID), [3, 4, 3])
    texts = ["", "", ""]
    for number, piece in streams:
        texts[number] += piece.text
    assert texts[0] == texts[2] != texts[1]
    for number, seed in enumerate([3, 4, 3]):
        alone = Answerer(model, PROMPT, source, options=replace(options, seed=seed)).stream(Conversation(SAID))
        assert streams.with_sources(number).answer.text == texts[number] == alone.with_sources().answer.text


def test_an_answer_that_is_complete(model: WritingModel) -> None:
    def ended(new_tokens: int, *stop: str) -> tuple[str, bool]:
        options = AnswerOptions(new_tokens=new_tokens, stop=stop)
        streams = Answerer(model, PROMPT, options=options).stream(Conversation(SAID), [0])
        return streams.with_sources(0).answer.text, streams.is_complete(0)

    text, complete = ended(8)
    assert not complete
    last = text[-1]
    assert ended(8, last) == (text[: text.index(last)], True)  # even where the last token holds the stop string
    assert ended(2, "never there") == (ended(2)[0], False)


def test_a_question_is_a_conversation_of_one_message(model: WritingModel, source: FromRetriever) -> None:
    answerer = Answerer(model, PROMPT, source, options=OPTIONS)
    question = SAID[-1].content
    [one] = answerer.answers([question])
    [other] = answerer.answers([Conversation([SAID[-1]])])
    [more] = answerer.answers([Conversation(SAID)])
    assert one.as_json() == other.as_json()
    assert more.as_json() != one.as_json()


def test_a_reranker_chooses_the_passage_before_which_the_question_is_likeliest(
    model: WritingModel, source: FromRetriever
) -> None:
    question = SAID[-1].content
    first, asked = [256], model.tokenizer.encode(question).tolist()
    worths = []
    for passage in PASSAGES:
        text = [*first, *model.tokenizer.encode(passage.contents).tolist(), *asked]
        texts = [np.array(text[:place], dtype=np.int64) for place in range(len(text) - 6, len(text))]
        worths.append(
            sum(
                model.continuations().next_tokens([one]).log_probs_BC[0][token]
                for one, token in zip(texts, text[-6:], strict=True)
            )
        )
    reranked = Parts(reranker=ZeroShot(candidates=3, tokens=6))
    [answer] = Answerer(model, PROMPT, source, parts=reranked, options=OPTIONS).answers([Conversation(SAID)])
    assert answer.sources[0].passage.number == int(np.argmax(worths))
    with pytest.raises(UsageError, match="looks at the text to be predicted"):
        Answerer(model, PROMPT, source, parts=Parts(reranker=Oracle(candidates=3)), options=OPTIONS)


def test_conversations_are_answered_together(model: WritingModel, source: FromRetriever) -> None:
    answerer = Answerer(model, PROMPT, source, options=OPTIONS)
    asked: list[str | Conversation] = [
        Conversation(SAID),
        "Where is the dog?",
        Conversation(SAID, query="Where is the dog?"),
    ]
    together = [one.answer.text for one in answerer.answers(asked)]
    assert together == [answerer.stream(one).with_sources().answer.text for one in asked]


def test_passages_are_found_with_the_last_message_or_the_query(
    model: WritingModel, source: FromRetriever, retriever: SharedWordsRetriever
) -> None:
    answerer = Answerer(model, PROMPT, source, options=OPTIONS)
    [found] = answerer.answers([Conversation(SAID)])
    [other] = answerer.answers([Conversation(SAID, query="sheep on the hill.")])
    assert retriever.queries == [SAID[-1].content, "sheep on the hill."]
    assert [one.sources[0].passage.document_id for one in (found, other)] == ["sea", "hill"]
    assert found.question == other.question == SAID[-1].content


def test_passages_are_cut_before_anything_that_was_said(model: WritingModel, folder: Path) -> None:
    long = [Passage(0, "long", "Long", "sea " * 60 + "whales.")]
    source = FromRetriever(SharedWordsRetriever(long), long)
    tokenizer = full_tokenizer(model.tokenizer)
    chats = tokenizer.encode_chat(SAID)
    assert chats is not None
    plain = len(chats[0]) + len("\n\nQuestion: ")
    for room in (plain, plain + 20, plain + 200):
        options = AnswerOptions(new_tokens=8, stop=(), max_length=room + 8)
        [answer] = Answerer(model, PROMPT, source, options=options).answers([Conversation(SAID)])
        assert answer.cut.documents > 0
    with pytest.raises(UsageError, match=rf"the conversation has {plain} tokens .* and only {plain - 1} fit"):
        options = AnswerOptions(new_tokens=8, stop=(), max_length=plain + 7)
        next(Answerer(model, PROMPT, source, options=options).answers([Conversation(SAID)]))


def test_what_is_left_of_a_prompt_that_was_cut(model: WritingModel, source: FromRetriever) -> None:
    tokenizer = full_tokenizer(model.tokenizer)
    whole = tokenizer.encode_chat(SAID)
    assert whole is not None
    room = len(whole[0]) + len("\n\nQuestion: ") + 4
    answerer = Answerer(model, PROMPT, source, options=AnswerOptions(new_tokens=8, stop=(), max_length=room + 8))
    [asked], _ = answerer._inputs([Conversation(SAID)])
    text = tokenizer.decode(asked.prompts[0].tokens)
    said = "<s>(Be brief.)user: Tell me of the sea.</s>\nassistant: It is </s> deep.</s>\nuser: "
    assert text == f"{said}sea.\n\nQuestion: Who sings in the sea by night?</s>\nmodel: "


@pytest.mark.parametrize(
    ("asked", "prompt", "said"),
    [
        (Conversation(SAID), "replug", "has 4 messages, and this prompt asks one question"),
        (Conversation(SAID[1:3]), "chat", r"has \d+ tokens"),
        (Conversation([]), "chat", "no message of the user"),
        (Conversation(chat(" \n")), "chat", "the question is empty"),
        (Conversation(SAID, query=" "), "chat", "the query of the question is empty"),
    ],
)
def test_what_is_refused(model: WritingModel, asked: Conversation, prompt: str, said: str) -> None:
    long = [Message("user", "word " * 120)] if "tokens" in said else []
    asked = Conversation([*long, *asked.messages[1:]], asked.query) if long else asked
    with pytest.raises((ChatError, UsageError), match=said):
        next(Answerer(model, open_prompt(prompt), options=OPTIONS).answers([asked]))


def test_a_server_that_takes_one_message_refuses_several(model: WritingModel) -> None:
    tokenizer = PlainTokenizer(full_tokenizer(model.tokenizer), messages=True)
    alone = tokenizer.encode_chat(SAID[-1:])
    assert alone is not None
    assert tokenizer.decode(alone[0]) == SAID[-1].content
    with pytest.raises(ChatError, match="takes one message of the user, and the chat has 4"):
        tokenizer.encode_chat(SAID)

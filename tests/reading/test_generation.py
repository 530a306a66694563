"""Generation with a model whose numbers can be worked out by hand, and against re-reading everything each token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralm.errors import UsageError
from ralm.reading.generation import (
    GeneratedText,
    GenerationOptions,
    generate,
    generate_tokens,
    sample,
    spans,
    until_stop,
)
from ralm.reading.in_context import Documents
from ralm.records import NO_PASSAGE, Passages
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, passages_of


def options(**values: object) -> GenerationOptions:
    defaults = {"new_tokens": 6, "stride": 2, "query_tokens": 3, "document_tokens": 4}
    return GenerationOptions(**(defaults | values))  # type: ignore[arg-type]


def written(prompt: str, passages: Passages, settings: GenerationOptions) -> tuple[list[GeneratedText], CountingModel]:
    model = CountingModel(WordTokenizer())
    pieces = list(generate(prompt, model, settings, SharedWordsRetriever(passages), passages))
    return pieces, model


def test_the_passage_in_front_decides_and_is_named() -> None:
    pieces, _ = written("a b", passages_of("x y", "b c c c"), options())
    assert "".join(piece.text for piece in pieces) == "c c c c c c "
    assert {piece.passage for piece in pieces} == {1}


def test_without_a_retriever_nothing_stands_in_front() -> None:
    model = CountingModel(WordTokenizer())
    pieces = list(generate("a b b", model, options()))
    assert "".join(piece.text for piece in pieces) == "b " * 6
    assert {piece.passage for piece in pieces} == {NO_PASSAGE}


def test_the_cache_is_kept_while_the_passage_stays() -> None:
    _, model = written("a b", passages_of("b c c c"), options(new_tokens=8))
    assert len(model.reads) == 1


def test_a_new_passage_is_read_anew() -> None:
    passages = passages_of("c d d d d d", "a b c c c")
    pieces, model = written("a b", passages, options(new_tokens=8, document_tokens=7, query_tokens=2))
    assert list(spans(pieces)) == [GeneratedText("c c ", 1), GeneratedText("d " * 6, 0)]
    assert len(model.reads) == 2


@given(
    prompt=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=20),
    corpus=st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=9), min_size=1, max_size=4),
    stride=st.integers(1, 4),
    max_length=st.integers(10, 30),
    temperature=st.sampled_from([0.0, 0.7]),
)
def test_equals_reading_everything_anew_for_every_token(
    prompt: list[str], corpus: list[list[str]], stride: int, max_length: int, temperature: float
) -> None:
    passages = passages_of(*(" ".join(words) for words in corpus))
    retriever = SharedWordsRetriever(passages)
    settings = options(new_tokens=12, stride=stride, max_length=max_length, temperature=temperature, document_tokens=6)
    model = CountingModel(WordTokenizer("abcdefgh"), vocabulary=9)
    tokens = model.tokenizer.encode(" ".join(prompt))
    fast = list(generate_tokens(tokens, model, settings, retriever, passages))

    documents = Documents(passages, model.tokenizer, settings.document_tokens)
    generator = np.random.default_rng(settings.seed)
    text = tokens
    for step in range(settings.new_tokens):
        if step % stride == 0:
            query = model.tokenizer.decode(text[-settings.query_tokens :])
            passage = int(retriever.retrieve([query], 1).numbers_QK[0, 0])
        document = documents[passage]
        kept = text[max(0, len(document) + len(text) + 1 - max_length) :]
        log_probs = model.read(np.concatenate([document, kept])).next_log_probs_V
        token = sample(log_probs, temperature, 1.0, generator)
        if token == 0:
            assert len(fast) == step
            return
        assert (fast[step].token, fast[step].passage) == (token, passage)
        assert fast[step].log_prob == pytest.approx(float(log_probs[token]), rel=1e-6)
        text = np.append(text, token)


def test_greedy_takes_the_likeliest_and_the_first_of_equals() -> None:
    generator = np.random.default_rng(0)
    assert sample(np.log(np.array([0.2, 0.4, 0.4], dtype=np.float32)), 0.0, 1.0, generator) == 1


def test_sampling_follows_the_nucleus() -> None:
    generator = np.random.default_rng(0)
    log_probs = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
    drawn = [sample(log_probs, 1.0, 0.75, generator) for _ in range(4000)]
    shares = np.bincount(drawn, minlength=4) / 4000
    np.testing.assert_allclose(shares, [0.625, 0.375, 0, 0], atol=0.03)


def test_temperature_sharpens() -> None:
    generator = np.random.default_rng(0)
    log_probs = np.log(np.array([0.6, 0.4], dtype=np.float32))
    drawn = [sample(log_probs, 0.5, 1.0, generator) for _ in range(4000)]
    assert np.mean(np.array(drawn) == 0) == pytest.approx(0.36 / (0.36 + 0.16), abs=0.03)


@given(
    pieces=st.lists(st.text("ab|", max_size=3), max_size=12),
    stop=st.lists(st.text("ab|", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_cut_the_whole_text_however_it_was_pieced(pieces: list[str], stop: list[str]) -> None:
    whole = "".join(pieces)
    ends = [whole.index(string) for string in stop if string in whole]
    # a stop string is found in the first piece that completes one, so the earliest completed is what counts
    completed = [whole.index(string) + len(string) for string in stop if string in whole]
    out = list(until_stop([GeneratedText(text=piece, passage=0) for piece in pieces], stop))
    text = "".join(piece.text for piece in out)
    assert whole.startswith(text)
    if not ends:
        assert text == whole
    else:
        assert all(string not in text for string in stop)
        assert len(text) <= min(completed)


def test_stop_string_across_pieces_keeps_sources() -> None:
    pieces = [GeneratedText("one ", 3), GeneratedText("two\n", 4), GeneratedText("\nthree", 5)]
    assert list(until_stop(pieces, ["\n\n"])) == [GeneratedText("one ", 3), GeneratedText("two", 4)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"new_tokens": 0}, "--new-tokens must be at least 1"),
        ({"temperature": -1.0}, "--temperature must be 0"),
        ({"temperature": float("nan")}, "--temperature must be 0"),
        ({"top_p": 0.0}, "--top-p must be above 0"),
        ({"stop": ("",)}, "--stop must not be empty"),
    ],
)
def test_bad_options_are_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        options(**values)


def test_empty_prompt() -> None:
    with pytest.raises(UsageError, match="the prompt is empty"):
        generate("  ", CountingModel(WordTokenizer()), options())


def test_document_too_long_for_the_model() -> None:
    with pytest.raises(UsageError, match="do not fit together into the model length 5"):
        list(generate("a", CountingModel(WordTokenizer()), options(max_length=5)))

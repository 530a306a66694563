"""Generation against a plain loop that averages probabilities and reads everything anew for every token."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st
from pydantic import JsonValue

from ralm.errors import UsageError
from ralm.lm.local.model import LocalLanguageModel
from ralm.protocols import Retriever
from ralm.reading.generate import TokenWriter, generate, generate_many
from ralm.reading.mixture import SimilarityWeights, UniformWeights
from ralm.reading.parts import Parts
from ralm.reading.pieces import GeneratedToken, spans
from ralm.reading.readers import Ensemble
from ralm.reading.sampling import GenerationOptions, sample
from ralm.reading.sources import FromRetriever
from ralm.records import NO_PASSAGE, Hits, Passages
from tests.campaign import campaign
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, passages_of
from tests.reading.loops import PASSAGES, TEXT, plain_generation, written
from tests.reference import generation


def options(**values: object) -> GenerationOptions:
    defaults = {"new_tokens": 6, "stride": 2, "query_tokens": 3, "document_tokens": 4, "top_logprobs": 4}
    return GenerationOptions(**(defaults | values))  # type: ignore[arg-type]


def found_by(retriever: Retriever, passages: Passages) -> FromRetriever:
    return FromRetriever(retriever, passages, config={})


def test_a_new_passage_is_read_again_and_is_named() -> None:
    passages, model = passages_of("c d d d d d", "a b c c c"), CountingModel(WordTokenizer())
    settings = options(new_tokens=8, document_tokens=7, query_tokens=2)
    source = found_by(SharedWordsRetriever(passages), passages)
    pieces = list(generate("a b", model, settings, source, Parts(reader=Ensemble(documents=1))))
    assert [(span.text, span.passage) for span in spans(pieces)] == [("c c ", 1), ("d " * 6, 0)]
    assert len(model.reads) == 2
    assert all(piece.passage == piece.tokens[-1].passage for piece in pieces)
    assert [token for span in spans(pieces) for token in span.tokens] == [t for piece in pieces for t in piece.tokens]


def test_without_a_retriever_no_passage_is_read() -> None:
    pieces = list(generate("a b b", CountingModel(WordTokenizer()), options()))
    assert "".join(piece.text for piece in pieces) == "b " * 6
    assert {piece.passage for piece in pieces} == {NO_PASSAGE}


def check(written: Sequence[GeneratedToken], expected: Sequence[generation.Step], tolerance: float = 1e-5) -> None:
    """The same tokens, log-probabilities, documents, posteriors and likeliest tokens."""
    assert [token.token for token in written] == [step.token for step in expected]
    for token, step in zip(written, expected, strict=True):
        assert token.passages_K.tolist() == step.numbers
        assert token.log_prob == pytest.approx(np.log(step.probability), rel=tolerance, abs=tolerance)
        np.testing.assert_allclose(token.posteriors_K, np.array(step.parts) / sum(step.parts), atol=10 * tolerance)
        assert token.posteriors_K.sum() == pytest.approx(1, abs=1e-5)
        ids, log_probs = zip(*token.top_logprobs, strict=True)
        best = np.sort(step.average)[::-1][:4]
        np.testing.assert_allclose(np.exp(log_probs), best, rtol=100 * tolerance)
        np.testing.assert_allclose(step.average[[*ids]], best, rtol=100 * tolerance)
        assert len({*ids}) == 4


@given(
    prompt=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=20),
    corpus=st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=9), min_size=1, max_size=4),
    stride=st.integers(1, 4),
    max_length=st.integers(10, 30),
    documents=st.integers(1, 5),
    weights=st.sampled_from(["similarity", "uniform"]),
    temperature=st.sampled_from([0.0, 0.7]),
)
def test_equals_reading_everything_anew_for_every_token(
    prompt: list[str],
    corpus: list[list[str]],
    stride: int,
    max_length: int,
    documents: int,
    weights: str,
    temperature: float,
) -> None:
    passages = passages_of(*(" ".join(words) for words in corpus))
    source = found_by(SharedWordsRetriever(passages), passages)
    settings = options(new_tokens=12, stride=stride, max_length=max_length, document_tokens=6, temperature=temperature)
    parts = Parts(
        reader=Ensemble(documents=documents), mixer=UniformWeights() if weights == "uniform" else SimilarityWeights()
    )
    model = CountingModel(WordTokenizer("abcdefgh"), vocabulary=9)
    tokens = model.tokenizer.encode(" ".join(prompt))
    (fast,) = written(TokenWriter(model, settings, source, parts=parts), tokens)
    drawn = iter([token.token for token in fast])

    def same(average: np.ndarray) -> int:
        """Follow what was written, so that equal probabilities may differ in their last digit."""
        token = next(drawn, 0)
        assert temperature > 0 or average[token] >= average.max() * (1 - 1e-5)
        return token

    def probabilities(read: Sequence[int]) -> np.ndarray:
        return np.exp(model.next_log_probs_V(np.array(read)).astype(np.float64))

    check(fast, plain_generation(tokens, model, settings, source, parts, probabilities, same))


class Drawn:
    """Tokens drawn as the options say, with a generator of their own."""

    def __init__(self, settings: GenerationOptions) -> None:
        self.settings = settings
        self.generator = np.random.default_rng(settings.seed)

    def __call__(self, average: np.ndarray) -> int:
        return sample(np.log(average), self.settings.draw(range(1), np.zeros(1), self.generator))


class SomeHits:
    """Hits that depend on the query's length and last letter alone; none for one query in six, few for others."""

    config: dict[str, JsonValue] = {"retriever": "some hits"}  # noqa: RUF012

    def __init__(self, passages: Passages) -> None:
        self.passages = passages

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        numbers_QK = np.full((len(queries), k), NO_PASSAGE, dtype=np.int64)
        scores_QK = np.zeros((len(queries), k), dtype=np.float32)
        for row, query in enumerate(queries):
            state = sum(map(ord, query[-2:]))
            count = min(k, len(self.passages), state % 6)
            for column in range(count):
                numbers_QK[row, column] = (state + column) % len(self.passages)
                scores_QK[row, column] = np.sin(state + 2 * column)
        return Hits(numbers_QK=numbers_QK, scores_QK=scores_QK)


ENSEMBLES = [
    Parts(reader=Ensemble(documents=1)),
    Parts(reader=Ensemble(documents=4)),
    Parts(reader=Ensemble(documents=9, temperature=0.3)),
    Parts(reader=Ensemble(documents=3), mixer=UniformWeights()),
]


@pytest.mark.parametrize(("max_length", "temperature"), [(None, 0.0), (32, 1.0)])
@pytest.mark.parametrize(
    "chosen",
    [campaign(ENSEMBLES[0]), ENSEMBLES[1], campaign(ENSEMBLES[2]), campaign(ENSEMBLES[3])],
    ids=["one", "four", "nine", "uniform"],
)
def test_many_prompts_equal_the_plain_loop(
    model: LocalLanguageModel, chosen: Parts, max_length: int | None, temperature: float
) -> None:
    """Also where the text outgrows the model, and the window slides."""
    settings = options(
        new_tokens=12,
        stride=3,
        document_tokens=10,
        max_length=max_length,
        temperature=temperature,
        top_k=40,
        top_p=0.9,
        seed=3,
    )
    prompts = [model.tokenizer.encode(text) for text in (TEXT[:46], "The", "What it is worth")]
    source = found_by(SomeHits(PASSAGES), PASSAGES)
    probabilities = generation.model_probabilities(model.model)
    writer = TokenWriter(model, settings, source, parts=chosen)
    for prompt, fast in zip(prompts, written(writer, *prompts), strict=True):
        pick = Drawn(settings)
        expected = plain_generation(prompt, model, settings, source, chosen, probabilities, pick)
        check(fast, expected, tolerance=3e-5)
    assert max_length is None or len(prompts[0]) > max_length


def test_every_prompt_ends_by_itself() -> None:
    """At an end-of-text token, and at a stop string, while the others go on."""
    passages = passages_of("a x x x x", "b <end> <end> <end>", "c y y y y")
    model = CountingModel(WordTokenizer("abcxy"))
    settings = options(new_tokens=6, stop=("x x x",), query_tokens=9)
    source = found_by(SharedWordsRetriever(passages), passages)
    pieces = list(generate_many(["a", "b", "c"], model, settings, source))
    texts = ["".join(piece.text for number, piece in pieces if number == prompt) for prompt in range(3)]
    assert texts == ["", "", "y " * 6]
    alone = ["".join(piece.text for piece in generate(prompt, model, settings, source)) for prompt in "abc"]
    assert alone == texts


def test_an_empty_stop_string_is_rejected() -> None:
    with pytest.raises(UsageError, match="`stop` must not be empty"):
        options(stop=("",))


def test_empty_prompt() -> None:
    with pytest.raises(UsageError, match="the prompt is empty"):
        generate("  ", CountingModel(WordTokenizer()), options())
    with pytest.raises(UsageError, match="prompt 2 of 2 is empty"):
        generate_many(["a", ""], CountingModel(WordTokenizer()), options())

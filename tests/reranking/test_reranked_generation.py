"""Reranking and joining passages while text is written, against a plain loop that reads everything anew."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm.errors import UsageError
from ralm.reading.generate import TokenWriter, generate
from ralm.reading.parts import Parts
from ralm.reading.pieces import GeneratedToken
from ralm.reading.readers import Concatenation, Ensemble
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from ralm.records import IntArray
from ralm.reranking.oracle import Oracle
from ralm.reranking.zero_shot import ZeroShot
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, passages_of
from tests.reading.loops import written
from tests.reference import ensemble, generation

LETTERS = "abcdefgh"
PASSAGES = passages_of("c d c d d d", "e f e", "g h g h g h", "a b c", "b", "h a f")
CUT, RANKED, CANDIDATES = 4, 3, 4


def options(**values: object) -> GenerationOptions:
    defaults = {"new_tokens": 8, "stride": 2, "query_tokens": 3, "document_tokens": CUT, "max_length": 16}
    return GenerationOptions(**(defaults | values))  # type: ignore[arg-type]


def writes() -> CountingModel:
    return CountingModel(WordTokenizer(LETTERS), vocabulary=9)


def ranks() -> CountingModel:
    """Another model, with other token ids, a BOS before documents, and fewer tokens that it can read."""
    return CountingModel(WordTokenizer(LETTERS[::-1], begins=True), vocabulary=30, max_length=13)


def total(ranker: CountingModel, text: str, number: int) -> float:
    """The log-probability of the last tokens of a text behind a passage, everything encoded and read anew."""
    tokenizer = ranker.tokenizer
    document = tokenizer.encode_document(PASSAGES[number].text, CUT)
    tokens = tokenizer.encode(text)
    kept = tokens[max(0, len(document) + len(tokens) - min(16, ranker.max_length)) :]
    read = np.concatenate([document, kept])
    ranked = range(len(read) - min(RANKED, len(tokens) - 1), len(read))
    return sum(float(ranker.next_log_probs_V(read[:at])[read[at]]) for at in ranked)


def writes_after(prompt: IntArray, model: CountingModel, how: GenerationOptions, **parts: Any) -> list[GeneratedToken]:
    source = FromRetriever(SharedWordsRetriever(PASSAGES), PASSAGES, config={})
    return written(TokenWriter(model, how, source, Parts(**parts)), prompt)[0]


PROMPTS = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=20).map(" ".join)


@pytest.mark.parametrize("by", ["the writing model", "another"])
@settings(max_examples=40)
@given(PROMPTS, st.integers(1, 3), st.integers(1, 4), st.integers(0, 9))
def test_zero_shot_equals_the_plain_loop(by: str, prompt: str, documents: int, stride: int, seed: int) -> None:
    model, ranker = writes(), ranks()
    ranking = ranker if by == "another" else model
    tokens = model.tokenizer.encode(prompt)
    reranker = ZeroShot(candidates=CANDIDATES, tokens=RANKED, model=ranker if by == "another" else None)
    how = options(stride=stride, temperature=1.0, seed=seed)
    fast = writes_after(tokens, model, how, reader=Ensemble(documents=documents), reranker=reranker)
    followed = iter(fast)

    def retrieve(text: Sequence[int]) -> list[tuple[int, float]]:
        query = model.tokenizer.decode(np.array(text[-how.query_tokens :]))
        found = [number for number, _ in SharedWordsRetriever(PASSAGES).retrieve([query], CANDIDATES).of(0)]
        words = model.tokenizer.decode(np.array(text))
        totals = {number: total(ranking, words, number) if len(found) > 1 else 0.0 for number in found}
        best = sorted(found, key=lambda number: -totals[number])[:documents]
        step = len(text) - len(tokens)
        chosen = fast[step].passages_K.tolist() if found and step < len(fast) else best
        assert set(chosen) <= set(found)
        assert len(set(chosen)) == len(best)
        np.testing.assert_allclose(
            [totals[number] for number in chosen], [totals[number] for number in best], rtol=1e-5
        )
        assert chosen == best or len(set(np.round(list(totals.values()), 4))) < len(found), "only where two are equal"
        return [(number, totals[number]) for number in chosen]

    expected = generation.generate(
        tokens.tolist(),
        {n: model.tokenizer.encode(passage.text)[:CUT].tolist() for n, passage in enumerate(PASSAGES)},
        retrieve,
        lambda read: np.exp(model.next_log_probs_V(np.array(read)).astype(np.float64)),
        lambda _: next((token.token for token in followed), 0),
        weights=ensemble.weights,
        new_tokens=how.new_tokens,
        stride=stride,
        max_length=16,
        end_tokens=model.end_tokens,
    )
    assert len(fast) == len(expected)
    for token, step in zip(fast, expected, strict=True):
        assert token.passages_K.tolist() == step.numbers
        assert token.log_prob == pytest.approx(np.log(step.probability), abs=1e-4)
        np.testing.assert_allclose(token.posteriors_K, np.array(step.parts) / sum(step.parts), atol=1e-4)


@settings(max_examples=40)
@given(PROMPTS, st.integers(1, 4))
def test_several_passages_in_one_context_equal_the_plain_loop(prompt: str, stride: int) -> None:
    """The best first, behind it the others, the oldest of the text dropped."""
    model = writes()
    text = model.tokenizer.encode(prompt)
    how = options(stride=stride)
    fast = writes_after(text, model, how, reader=Concatenation(documents=2))
    for step, token in enumerate(fast):
        if step % stride == 0:
            query = model.tokenizer.decode(text[-how.query_tokens :])
            found = [number for number, _ in SharedWordsRetriever(PASSAGES).retrieve([query], 2).of(0)]
            documents = [model.tokenizer.encode(PASSAGES[number].text)[:CUT] for number in found]
        prompt_prefix = np.concatenate([text[:0], *documents])
        log_probs_V = model.next_log_probs_V(
            np.concatenate([prompt_prefix, text[max(0, len(prompt_prefix) + len(text) - 15) :]])
        )
        assert token.token == log_probs_V.argmax()
        assert token.log_prob == pytest.approx(log_probs_V.max(), rel=1e-6)
        assert token.passages_K.tolist() == (found[:1] or [-1])
        text = np.append(text, token.token)
    assert len(fast) == how.new_tokens or log_probs_V.argmax() in model.end_tokens


def test_a_ranker_that_cannot_read_a_passage_and_the_tokens_is_refused() -> None:
    source = FromRetriever(SharedWordsRetriever(PASSAGES), PASSAGES, config={})
    for model, length in ((None, 16), (ranks(), 13)):
        message = f"`document_tokens` 4 and `rerank` tokens 12 do not fit together into {length} tokens: lower"
        with pytest.raises(UsageError, match=message):
            list(generate("a b", writes(), options(), source, Parts(reranker=ZeroShot(tokens=12, model=model))))


def test_the_oracle_is_refused_since_nobody_knows_what_will_be_written() -> None:
    source = FromRetriever(SharedWordsRetriever(PASSAGES), PASSAGES, config={})
    with pytest.raises(UsageError, match="the reranker Oracle looks at the text to be predicted, which generation"):
        list(generate("a b", writes(), options(), source, Parts(reranker=Oracle())))

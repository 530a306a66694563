"""Prompts that join and leave a running batch: what is written after each is what is written after it alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm.protocols import Reader, Reranker
from ralm.reading.generate import Prompt, TokenWriter, generate, generate_many
from ralm.reading.parts import Parts
from ralm.reading.pieces import GeneratedToken
from ralm.reading.readers import Concatenation, Ensemble, InContext
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from ralm.records import NO_PASSAGE, Hits
from ralm.reranking.oracle import RandomChoice
from ralm.reranking.zero_shot import ZeroShot
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer, passages_of
from tests.reading.loops import written

LETTERS = "abcdefgh"
PASSAGES = passages_of("c d c d", "e f <end> e", "g h g h", "a b c", "b", "h a")


class NarrowRetriever(SharedWordsRetriever):
    """As few columns as the query with the most hits needs, so that they depend on which queries come together."""

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        hits = super().retrieve(queries, k)
        return hits.first(max(1, int((hits.numbers_QK != NO_PASSAGE).sum(axis=1).max(initial=0))))


@dataclass(frozen=True)
class Joining:
    """A prompt, the step before which it joins, and after how many tokens it leaves, if the writing does not end."""

    words: str
    joins: int
    leaves: int


PROMPTS = st.builds(
    Joining,
    words=st.lists(st.sampled_from(LETTERS), min_size=1, max_size=12).map(" ".join),
    joins=st.integers(0, 12),
    leaves=st.integers(1, 12),
)


@dataclass(frozen=True)
class Writing:
    """How it is written."""

    options: GenerationOptions
    reader: Reader
    reranker: Reranker | None

    def writer(self) -> tuple[TokenWriter, CountingModel]:
        model = CountingModel(WordTokenizer(LETTERS), vocabulary=9)
        source = FromRetriever(NarrowRetriever(PASSAGES), PASSAGES, config={})
        return TokenWriter(model, self.options, source, parts=Parts(reader=self.reader, reranker=self.reranker)), model

    def alone(self, words: str) -> list[GeneratedToken]:
        writer, model = self.writer()
        return written(writer, model.tokenizer.encode(words))[0]


WRITINGS = st.builds(
    Writing,
    options=st.builds(
        GenerationOptions,
        new_tokens=st.integers(3, 9),
        stride=st.integers(1, 4),
        query_tokens=st.just(3),
        document_tokens=st.just(4),
        max_length=st.integers(16, 30),
        temperature=st.sampled_from([0.0, 1.0]),
        seed=st.integers(0, 9),
    ),
    reader=st.sampled_from([InContext(), Ensemble(documents=2), Concatenation(documents=2)]),
    reranker=st.sampled_from([None, ZeroShot(candidates=4, tokens=2), RandomChoice(candidates=4, seed=3)]),
)


@settings(max_examples=60)
@given(st.lists(PROMPTS, min_size=1, max_size=4), WRITINGS)
def test_what_is_written_does_not_depend_on_who_else_is_there(prompts: list[Joining], how: Writing) -> None:
    writer, model = how.writer()
    joined: dict[int, Joining] = {}
    tokens: dict[int, list[GeneratedToken]] = {}
    for at in range(40):
        for prompt in prompts:
            if prompt.joins == at:
                number = writer.add(model.tokenizer.encode(prompt.words))
                joined[number], tokens[number] = prompt, []
        for number, token in writer.step():
            tokens[number].append(token)
            if len(tokens[number]) == joined[number].leaves:
                writer.end(number)
    assert len(tokens) == len(prompts)
    for number, prompt in joined.items():
        expected = how.alone(prompt.words)[: prompt.leaves]
        assert [token.token for token in tokens[number]] == [token.token for token in expected]
        for found, token in zip(tokens[number], expected, strict=True):
            assert found.log_prob == token.log_prob
            assert found.passages_K.tolist() == token.passages_K.tolist()
            np.testing.assert_array_equal(found.posteriors_K, token.posteriors_K)


def test_a_writer_without_prompts_waits_for_one() -> None:
    writer, model = Writing(GenerationOptions(new_tokens=1, document_tokens=4), InContext(), None).writer()
    assert writer.step() == []
    assert writer.add(model.tokenizer.encode("a")) == 0
    assert [number for number, _ in writer.step()] == [0]
    assert writer.step() == []
    assert writer.add(model.tokenizer.encode("a")) == 1
    writer.end(1)
    writer.end(1)
    assert writer.step() == []


OPTIONS = GenerationOptions(new_tokens=5, stride=2, query_tokens=2, document_tokens=4)


def test_the_retriever_is_asked_with_a_prompts_own_query() -> None:
    """At every stride, and those beside it with their text as it grows."""
    retriever = SharedWordsRetriever(PASSAGES)
    source = FromRetriever(retriever, PASSAGES, config={})
    model = CountingModel(WordTokenizer(LETTERS))
    prompts = [Prompt("a b", query="g"), Prompt("x y z z")]
    pieces = list(generate_many(prompts, model, OPTIONS, source))
    texts = ["".join(piece.text for number, piece in pieces if number == prompt) for prompt in range(2)]
    assert retriever.queries[:2] == ["g", "z z "]
    assert retriever.queries[2::2] == ["g", "g"]
    words = ("x y z z " + texts[1]).split()
    assert retriever.queries[3::2] == [" ".join(words[end - 2 : end]) + " " for end in (6, 8)]
    assert {piece.passage for number, piece in pieces if number == 0} == {2}
    assert set(texts[0].split()) <= {"g", "h"}, "its passage decides"


@pytest.mark.parametrize("query", ["", "nothing of it"])
def test_a_query_that_finds_nothing_reads_no_passage(query: str) -> None:
    source = FromRetriever(SharedWordsRetriever(PASSAGES), PASSAGES, config={})
    model = CountingModel(WordTokenizer(LETTERS))
    found, plain = (
        [token for piece in generate(prompt, model, OPTIONS, from_where) for token in piece.tokens]
        for prompt, from_where in ((Prompt("a b b", query=query), source), ("a b b", None))
    )
    assert [token.token for token in found] == [token.token for token in plain]
    assert {token.passage for token in found} == {NO_PASSAGE}

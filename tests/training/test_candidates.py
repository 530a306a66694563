"""Candidates and their log-probabilities, against plain loops."""

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm.corpus.decontamination import NGRAM
from ralm.errors import UsageError
from ralm.lm.scoring import Scorer
from ralm.reading.tokens import PassageDocuments
from ralm.records import NO_PASSAGE, Document, Passage
from ralm.training.candidates import find_candidates, score_candidates
from ralm.training.examples import Example, queries_of, sample_examples
from ralm.training.options import ExampleOptions
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer

OPTIONS = ExampleOptions(
    examples=12, prefix_tokens=16, sequence_tokens=40, query_tokens=6, continuation_tokens=4, per_sequence=3
)


def texts(seed: int, count: int, words: int) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(f"w{word}" for word in random.zipf(1.3, words) % 40) for _ in range(count)]


def corpus(seed: int) -> tuple[list[Document], list[Passage]]:
    """Documents, and the passages of them and of others; some passages of other documents quote a document."""
    documents = [Document(f"d{i}", "", text) for i, text in enumerate(texts(seed, 4, 60))]
    passages = [(one.id, " ".join(one.text.split()[at : at + 20])) for one in documents for at in (0, 20, 40)]
    passages += [("quotes", " ".join(documents[0].text.split()[14:34]))]
    passages += [(f"other{i}", text) for i, text in enumerate(texts(seed + 1000, 12, 20))]
    return documents, [Passage(number, name, "", text) for number, (name, text) in enumerate(passages)]


def gives_away(example: Example, passage: Passage, documents: Sequence[Document]) -> bool:
    """Whether the passage is of the example's document, or shares 13 words in a row with it at the continuation."""
    if passage.document_id == example.document_id:
        return True
    text = next(one.text for one in documents if one.id == example.document_id)
    words, quoted = re.findall(r"\w+", text), re.findall(r"\w+", passage.text)
    runs = {tuple(quoted[i : i + NGRAM]) for i in range(len(quoted) - NGRAM + 1)}
    last = example.begin + len(example.continuation) - 1
    return any(
        tuple(words[i : i + NGRAM]) in runs
        for i in range(len(words) - NGRAM + 1)
        if i <= last and i + NGRAM > example.begin
    )


@given(seed=st.integers(0, 10_000), k=st.integers(1, 30))
@settings(max_examples=30)
def test_candidates_are_the_best_that_do_not_give_the_answer_away(seed: int, k: int) -> None:
    documents, passages = corpus(seed)
    tokenizer = WordTokenizer()
    examples = sample_examples(documents, tokenizer, OPTIONS)
    retriever = SharedWordsRetriever(passages)
    queries = queries_of(examples, tokenizer, OPTIONS.query_tokens)
    every = retriever.retrieve(queries, len(passages))
    found = find_candidates(examples, queries, retriever, passages, k, exclude=True)
    for row, example in enumerate(examples):
        assert queries[row].split() == tokenizer.decode(example.prefix).split()[-OPTIONS.query_tokens :]
        right = [hit for hit in every.of(row) if not gives_away(example, passages[hit[0]], documents)]
        assert found.of(row) == right[:k]
    without = find_candidates(examples, queries, retriever, passages, k, exclude=False)
    assert [without.of(row) for row in range(len(examples))] == [every.of(row)[:k] for row in range(len(examples))]


@given(seed=st.integers(0, 10_000), begins=st.booleans())
@settings(max_examples=20)
def test_log_probs_are_those_of_each_candidate_alone(seed: int, begins: bool) -> None:
    documents, passages = corpus(seed)
    tokenizer = WordTokenizer(begins=begins)
    model = CountingModel(tokenizer, max_length=128)
    examples = sample_examples(documents, tokenizer, OPTIONS)
    queries = queries_of(examples, tokenizer, OPTIONS.query_tokens)
    hits = find_candidates(examples, queries, SharedWordsRetriever(passages), passages, 4, exclude=True)
    numbers_of = [[NO_PASSAGE, *(number for number, _ in hits.of(row))] for row in range(len(examples))]
    scored = score_candidates(examples, numbers_of, PassageDocuments(passages, tokenizer, 10, "auto"), Scorer(model))
    first = [1] if begins else []
    for example, numbers, log_probs in zip(examples, numbers_of, scored, strict=True):
        for number, found in zip(numbers, log_probs, strict=True):
            text = tokenizer.encode("" if number == NO_PASSAGE else passages[number].text)
            read = [*[*first, *text][:10], *example.prefix]
            alone = []
            for token in example.continuation:
                alone.append(model.next_log_probs_V(np.array(read, dtype=np.int64))[token])
                read.append(token)
            np.testing.assert_allclose(found, alone, rtol=1e-6)


def test_passages_without_document_ids() -> None:
    documents, passages = corpus(0)
    nameless = [Passage(one.number, "", "", one.text) for one in passages]
    tokenizer = WordTokenizer()
    examples = sample_examples(documents, tokenizer, OPTIONS)
    queries = queries_of(examples, tokenizer, 6)
    with pytest.raises(UsageError, match="no document id"):
        find_candidates(examples, queries, SharedWordsRetriever(nameless), nameless, 3, exclude=True)

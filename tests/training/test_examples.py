"""Examples sampled from documents, against every place that they could be drawn from; their candidates and log-
probabilities, against plain loops."""

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm.corpus.decontamination import NGRAM, run_hash
from ralm.errors import TextError, UsageError
from ralm.lm.scoring import Scorer
from ralm.reading.tokens import PassageDocuments
from ralm.records import NO_PASSAGE, Document, Passage
from ralm.training.examples import Example, find_candidates, queries_of, sample_examples, score_candidates
from ralm.training.options import ExampleOptions
from tests.fakes import CountingModel, SharedWordsRetriever, WordTokenizer

OPTIONS = ExampleOptions(
    examples=12, prefix_tokens=16, sequence_tokens=40, query_tokens=6, continuation_tokens=4, per_sequence=3
)


def document(name: str, words: int) -> Document:
    return Document(name, "", " ".join(f"{name}w{i}" for i in range(words)))


def every_place(documents: Sequence[Document], options: ExampleOptions) -> list[tuple[str, int, int]]:
    """Document, first token of the sequence, first token of the continuation: written down without arrays."""
    places = []
    for one in documents:
        words = one.text.split()
        for begin in range(0, len(words), options.sequence_tokens):
            end = min(begin + options.sequence_tokens, len(words))
            at = begin + options.prefix_tokens
            while at + options.continuation_tokens <= end:
                places.append((one.id, begin, at))
                at += options.continuation_tokens
    return places


def place_of(example: Example) -> tuple[str, int, int]:
    return example.document_id, example.begin - len(example.prefix), example.begin


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    wanted=st.integers(1, 60),
    continuation=st.integers(1, 4),
    prefix=st.integers(1, 6),
    more=st.integers(0, 12),
    per_sequence=st.integers(1, 5),
    seed=st.integers(0, 5),
)
def test_examples_are_places_of_the_text(
    lengths: list[int], wanted: int, continuation: int, prefix: int, more: int, per_sequence: int, seed: int
) -> None:
    documents = [document(f"d{i}", length) for i, length in enumerate(lengths)]
    options = ExampleOptions(
        examples=wanted,
        continuation_tokens=continuation,
        prefix_tokens=prefix,
        sequence_tokens=prefix + continuation + more,
        per_sequence=per_sequence,
        query_tokens=1,
        seed=seed,
    )
    places = every_place(documents, options)
    tokenizer = WordTokenizer()
    if not places:
        with pytest.raises(TextError, match="no document has"):
            sample_examples(documents, tokenizer, options)
        return
    examples = sample_examples(documents, tokenizer, options)
    sequences: dict[tuple[str, int], int] = {}
    for name, begin, _ in places:
        sequences[name, begin] = min(per_sequence, sequences.get((name, begin), 0) + 1)
    assert len(examples) == min(wanted, sum(sequences.values()))
    found = [place_of(one) for one in examples]
    assert found == sorted(set(found), key=places.index)
    for one in examples:
        words = next(other for other in documents if other.id == one.document_id).text.split()
        begin, end = one.begin - len(one.prefix), one.begin + len(one.continuation)
        assert tokenizer.decode(np.concatenate([one.prefix, one.continuation])).split() == words[begin:end]
        assert len(one.continuation) == continuation
    again = sample_examples(documents, tokenizer, options)
    assert [place_of(one) for one in again] == found


def test_runs_are_those_that_overlap_the_continuation() -> None:
    text = document("d", 200).text
    options = ExampleOptions(
        examples=999, prefix_tokens=10, sequence_tokens=40, per_sequence=99, query_tokens=4, continuation_tokens=3
    )
    words = re.findall(r"\w+", text.lower())
    for one in sample_examples([Document("d", "", text)], WordTokenizer(), options):
        first, last = one.begin, one.begin + 2
        starts = [i for i in range(len(words) - NGRAM + 1) if i <= last and i + NGRAM > first]
        assert set(one.runs) == {run_hash(" ".join(words[i : i + NGRAM])) for i in starts}


@pytest.mark.parametrize(
    ("values", "said"),
    [({"sequence_tokens": 100}, "do not fit into `sequence_tokens`"), ({"query_tokens": 200}, "must be at most")],
)
def test_lengths_that_do_not_fit(values: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ExampleOptions(**values)


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
    found = find_candidates(examples, queries, retriever, passages, k)
    for row, example in enumerate(examples):
        assert queries[row].split() == tokenizer.decode(example.prefix).split()[-OPTIONS.query_tokens :]
        right = [hit for hit in every.of(row) if not gives_away(example, passages[hit[0]], documents)]
        assert found.of(row) == right[:k]


@given(seed=st.integers(0, 10_000), begins=st.booleans())
@settings(max_examples=20)
def test_log_probs_are_those_of_each_candidate_alone(seed: int, begins: bool) -> None:
    documents, passages = corpus(seed)
    tokenizer = WordTokenizer(begins=begins)
    model = CountingModel(tokenizer, max_length=128)
    examples = sample_examples(documents, tokenizer, OPTIONS)
    queries = queries_of(examples, tokenizer, OPTIONS.query_tokens)
    hits = find_candidates(examples, queries, SharedWordsRetriever(passages), passages, 4)
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
        find_candidates(examples, queries, SharedWordsRetriever(nameless), nameless, 3)

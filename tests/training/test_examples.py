"""Examples sampled from documents, against every place that they could be drawn from."""

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ralm.corpus.decontamination import NGRAM, run_hash
from ralm.errors import TextError, UsageError
from ralm.records import Document
from ralm.training.examples import Example, sample_examples
from ralm.training.options import ExampleOptions
from tests.fakes import WordTokenizer


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


def test_another_seed_draws_other_examples() -> None:
    documents = [document(f"d{i}", 40) for i in range(50)]
    drawn = [
        [
            place_of(one)
            for one in sample_examples(
                documents,
                WordTokenizer(),
                ExampleOptions(examples=20, prefix_tokens=8, sequence_tokens=20, query_tokens=4, seed=seed),
            )
        ]
        for seed in (0, 1)
    ]
    assert drawn[0] != drawn[1]
    assert len({name for name, _, _ in drawn[0]}) > 2


def test_runs_are_those_that_overlap_the_continuation() -> None:
    text = document("d", 200).text
    options = ExampleOptions(
        examples=999, prefix_tokens=10, sequence_tokens=40, per_sequence=99, query_tokens=4, continuation_tokens=3
    )
    words = re.findall(r"\w+", text.lower())
    for one in sample_examples([Document("d", "", text)], WordTokenizer(), options):
        first, last = one.begin, one.begin + 2
        starts = [i for i in range(len(words) - NGRAM + 1) if i <= last and i + NGRAM > first]
        assert set(one.runs) == {run_hash(words[i : i + NGRAM]) for i in starts}


@pytest.mark.parametrize(
    ("values", "said"),
    [({"sequence_tokens": 100}, "do not fit into `sequence_tokens`"), ({"query_tokens": 200}, "must be at most")],
)
def test_lengths_that_do_not_fit(values: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ExampleOptions(**values)

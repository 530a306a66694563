"""Decontamination: by title and by shared runs of words, checked by hand, against the plain loop, on real texts."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ralm.corpus.decontamination import (
    BY_OVERLAP,
    BY_TITLE,
    Decontamination,
    Removals,
    normal_title,
    read_titles,
    run_hash,
)
from ralm.corpus.sources import read_documents
from ralm.corpus.splitting import Splitting, make_passages
from ralm.errors import CorpusError, UsageError
from ralm.records import Document
from tests.shared_data import shared

EVALUATED = "The quick brown fox jumps over the lazy dog, and then it sleeps."
WORDS = st.lists(st.sampled_from("abc"), max_size=40).map(" ".join)


def runs(text: str, ngram: int) -> list[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return [tuple(words[i : i + ngram]) for i in range(len(words) - ngram + 1)]


def overlaps(decontamination: Decontamination, text: str) -> bool:
    return decontamination.overlaps(text, [(0, len(text))])[0]


@given(WORDS, WORDS, st.integers(1, 13))
def test_overlap_is_what_the_plain_loop_says(evaluated: str, passage: str, ngram: int) -> None:
    evaluation_runs = set(runs(evaluated, ngram))
    if not evaluation_runs:
        return
    found = [run in evaluation_runs for run in runs(passage, ngram)]
    decontamination = Decontamination.of(texts=[evaluated], ngram=ngram)
    assert overlaps(decontamination, passage) == any(found)
    assert decontamination.overlap(passage) == pytest.approx(sum(found) / max(1, len(found)))


def test_thirteen_words_are_too_many_and_twelve_are_not() -> None:
    words = EVALUATED.split()
    assert len(words) == 13
    decontamination = Decontamination.of(texts=[EVALUATED])
    assert overlaps(
        decontamination, "Before: the QUICK -- brown fox\njumps over the 'lazy' dog and then it sleeps; after"
    )
    assert not overlaps(decontamination, " ".join(words[:12]) + " it snores")
    assert not overlaps(decontamination, " ".join(words[1:]))
    assert not overlaps(decontamination, "")


@given(WORDS, st.lists(WORDS, min_size=1, max_size=4), st.integers(1, 6), st.floats(0, 0.99))
def test_runs_with_a_word_of_a_passage_are_its_own(evaluated: str, parts: list[str], ngram: int, share: float) -> None:
    if not runs(evaluated, ngram):
        return
    decontamination = Decontamination.of(texts=[evaluated], ngram=ngram, max_overlap=share)
    text, spans = "", []
    for part in parts:
        spans.append((len(text), len(text) + len(part)))
        text += f"{part} "
    forbidden, words = {*runs(evaluated, ngram)}, 0
    for part, left_out in zip(parts, decontamination.overlaps(text, spans), strict=True):
        own = range(words, words + len(part.split()))
        words = own.stop
        mine = [run for first, run in enumerate(runs(text, ngram)) if {*range(first, first + ngram)} & {*own}]
        assert left_out == (sum(run in forbidden for run in mine) > share * max(1, len(mine)))


SENTENCE = (
    "the \u201cquick\u201d brown fox jumps over a lazy dog\u2019s house\u2014and then it sleeps for well-nigh ever"
)


@pytest.mark.parametrize(
    "text",
    [
        "the 'quick' brown fox jumps over a lazy dog's house - and then it sleeps for well nigh ever",
        "the \xabquick\xbb brown fox jumps over a la\xadzy dog\u02bcs house\u2013and then it sleeps for well nigh ever",
        "the quick brown fox\njumps over\r\na lazy dog's\n\nhouse, and then it sleeps for well-\nnigh ever",
        "the quick brown fox jum-\nps over a lazy dog's house and then it sleeps for well-nigh ever",
        "the quick brown fox jumps over a lazy dog\u2019s house and then it sleeps for well\xad\nnigh ever",
        "_the_ *quick* brown\u200b fox jumps o\u200bver a lazy dog's house | and then it sleeps for well nigh ever",
        "\uff54\uff48\uff45 quick brown fox jumps over a lazy dog's house and then it sleeps for well nigh ever",
    ],
)
def test_layout_hides_no_contamination(text: str) -> None:
    """Quotes, dashes, hyphens, line breaks and width do not matter, nor where a passage ends."""
    decontamination = Decontamination.of(texts=[SENTENCE], ngram=13)
    assert overlaps(decontamination, text)
    removals = Removals()
    document = Document("d", "", f"{'before ' * 95}{text} {'after ' * 100}")
    left = [*make_passages([document], Splitting(words=100), decontamination=decontamination, removals=removals)]
    assert removals.count(BY_OVERLAP) == 2
    assert not any("fox" in passage.text or "sleeps" in passage.text for passage in left)


def test_a_sentence_without_spaces_is_found() -> None:
    sentence = "\u4eba\u4eba\u751f\u800c\u81ea\u7531\u5728\u5c0a\u56b4\u548c\u6b0a\u5229\u4e0a\u4e00\u5f8b\u5e73\u7b49"
    decontamination = Decontamination.of(texts=[sentence])
    assert overlaps(decontamination, f"\u4ed6\u5011{sentence[:5]}\n{sentence[5:]}\u3002")
    assert not overlaps(decontamination, sentence[:12] + "\u4ed6")


@pytest.mark.parametrize("split", ["words", "sentences", "structure"])
def test_overlapping_and_short_passages_are_left_out(split: Any) -> None:
    """Also where passages repeat words of the one before, or are shorter than a run."""
    text = ". ".join(f"Sentence {number} of {number} words that nobody wrote" for number in range(40)) + "."
    decontamination = Decontamination.of(texts=[text[400:560]], ngram=13)
    for splitting in (Splitting(split=split, words=7), Splitting(split=split, words=30)):
        left = [
            one.text for one in make_passages([Document("d", "", text)], splitting, decontamination=decontamination)
        ]
        assert left
        assert not any(
            overlaps(decontamination, f"{one} {other}") for one, other in pairwise(left) if f"{one} {other}" in text
        )


def test_runs_do_not_go_on_from_one_text_to_the_next() -> None:
    decontamination = Decontamination.of(texts=["a b c", "d e f"], ngram=3)
    assert not overlaps(decontamination, "b c d e")
    assert overlaps(decontamination, "c d e f")


def test_options_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="`ngram` must be at least 1, not 0"):
        Decontamination.of(ngram=0)
    for share in (1.0, -0.1, float("nan")):
        with pytest.raises(UsageError, match="`max_overlap` must be"):
            Decontamination.of(max_overlap=share)
    with pytest.raises(UsageError, match=r"`ngram` 13 is longer than the evaluation texts \(3 words\); lower it"):
        Decontamination.of(texts=["only three words"])


def test_another_process_finds_the_same() -> None:
    """Python's own hashes differ from process to process: nothing may rest on them."""
    assert run_hash("the quick brown fox") == 12_604_066_041_185_269_969


@pytest.mark.parametrize(
    "title",
    [
        '"Sorry (Madonna song)"',
        " sorry (madonna song)\t",
        "\u201cSorry (Madonna Song)\u201d",
        "So\xadrry (Madonna\u2009song)\ufeff",
    ],
)
def test_titles_are_compared_without_quotes_space_and_case(title: str) -> None:
    decontamination = Decontamination.of(titles=["Sorry (Madonna song)", ""])
    assert decontamination.forbids(Document(id="1", title=title, text="x"))
    for other in ("Sorry", "Sorry (song)", ""):
        assert not decontamination.forbids(Document(id="1", title=other, text="x"))


def test_a_file_of_titles(tmp_path: Path) -> None:
    path = tmp_path / "titles.txt"
    path.write_text('\n ""\n')
    with pytest.raises(CorpusError, match="holds no titles; write one per line"):
        read_titles(path)
    path.write_text("\ufeffOne\n\n Two \n", encoding="utf-8")
    assert [normal_title(title) for title in read_titles(path)] == ["one", "two"]


def test_passages_are_left_out_counted_and_listed() -> None:
    documents = [
        Document(id="1", title="Allowed", text="a b c d e f g"),
        Document(id="2", title='"Forbidden"', text="a b c d e"),
        Document(id="3", title="", text="x y z q"),
    ]
    removals = Removals()
    decontamination = Decontamination.of(titles=["forbidden"], texts=["x c d", "x y"], ngram=2)
    passages = list(make_passages(documents, Splitting(words=2), decontamination=decontamination, removals=removals))
    assert [(passage.number, passage.document_id, passage.text) for passage in passages] == [
        (0, "1", "a b"),
        (1, "1", "e f"),
        (2, "1", "g"),
        (3, "3", "z q"),
    ]
    assert (removals.count(BY_TITLE), removals.count(BY_OVERLAP)) == (3, 2)
    assert removals.counts() == {BY_TITLE: {"documents": 1, "passages": 3}, BY_OVERLAP: {"documents": 2, "passages": 2}}
    assert removals.listed() == [
        {"reason": BY_TITLE, "title": '"Forbidden"', "document_id": "", "passages": 3},
        {"reason": BY_OVERLAP, "title": "", "document_id": "3", "passages": 1},
        {"reason": BY_OVERLAP, "title": "Allowed", "document_id": "", "passages": 1},
    ]


def test_the_list_in_memory_is_bounded_and_the_counts_are_exact() -> None:
    removals = Removals()
    for number in range(30_000):
        removals.add(BY_TITLE, str(number), f"t{number % 15_000}", 2)
    assert removals.count(BY_TITLE) == 60_000
    assert len(removals.listed()) == 10_000
    assert removals.not_listed == 20_000
    assert all(isinstance(row, dict) and row["passages"] == 4 for row in removals.listed())


def test_forbidden_titles_of_wikitext() -> None:
    titles = read_titles(shared("data", "forbidden_titles", "wikitext103_forbidden_titles.txt"))
    assert len(titles) == 125
    decontamination = Decontamination.of(titles=titles)
    assert decontamination.forbids(Document(id="1", title='"Daniel Radcliffe"', text=""))
    assert not decontamination.forbids(Document(id="1", title="Daniel Day-Lewis", text=""))


def test_medquad_near_duplicates_go_and_the_rest_stays() -> None:
    """Held-out documents on shared topics share far more with the corpus than those on other topics."""
    folder = shared("data", "medquad")
    removed = {}
    for name in ("shared", "other"):
        held_out = [document.text for document in read_documents(str(folder / f"heldout_{name}_topics.jsonl"))]
        removals = Removals()
        decontamination = Decontamination.of(texts=held_out)
        documents = list(read_documents(str(folder / "corpus.jsonl.gz")))[::20]
        kept = list(make_passages(documents, decontamination=decontamination, removals=removals))
        evaluation_runs = {run for text in held_out for run in runs(text, 13)}
        assert not any(run in evaluation_runs for passage in kept for run in runs(passage.text, 13))
        total = len(list(make_passages(documents)))
        assert len(kept) + removals.count(BY_OVERLAP) == total
        removed[name] = removals.count(BY_OVERLAP) / total
    assert 0 < removed["other"] < removed["shared"] < 0.5

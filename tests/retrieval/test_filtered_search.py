"""Filters: their normal form, what is refused, and the best passages that pass them, as plain loops find them."""

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import eq, ge, gt, le, lt
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ralm.errors import DamagedFolderError, UsageError
from ralm.records import Passage
from ralm.retrieval.allowed import mask_config
from ralm.retrieval.bm25.stream import Stream
from ralm.retrieval.build import build_index
from ralm.retrieval.filters import COLUMNS_FILE, IndexColumns, parse_filter
from ralm.retrieval.hybrid import FusionOptions, Hybrid
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.random import RandomRetriever
from ralm.retrieval.update import update_index
from tests.campaign import campaign, examples
from tests.fakes import LetterEncoder
from tests.retrieval.searching import assert_equal, found_by, indexed, pieces, streamed, strides, words


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("year>=2020 and\nlang in ['en',\"de\"]", "year >= 2020 and lang in ['en', 'de']"),
        ("(2000 <= year < 2010)", "2000 <= year < 2010"),
        ("not draft == True or document_id != -3", "not draft == True or document_id != -3"),
        ('"x" not in author.name and metadata["a b"] is None', "'x' not in author.name and metadata['a b'] is None"),
        ("title.startswith('it\\'s (')", 'title.startswith("it\'s (")'),
    ],
)
def test_equal_filters_have_one_normal_form(text: str, normal: str) -> None:
    assert parse_filter(text).text == normal == parse_filter(normal).text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the filter is empty"),
        ("lang = 'en'", r"\(invalid syntax.*\): lang \[HERE\]= 'en'; write it as `year >= 2020"),
        ("exists year", r"\(invalid syntax\): exists \[HERE\]year"),
        ("lang == en", r'at `en`: one side of a comparison is a key, and a text stands in quotes: "en"'),
        ("open == true", "at `true`: write True"),
        ("1 == 2", "at `2`: one side of a comparison is a key"),
        ("lang in ('en')", "at `'en'`: the values after `in` stand in parentheses, each with a comma"),
        ("(a == 1", r"'\(' was never closed"),
        ("a == 'x", r"no part of a filter.*: a == \[HERE\]'x;"),
        ("draft", r"at `draft`: compare a key with a value, such as `year >= 2020`"),
        ("len(title) == 3", r"at `len\(title\)`|one side of a comparison is a key"),
        ("a == b'x'", "is compared with a number, a text in quotes, True or False; a missing one by `is None`"),
        ("a < True", "True and False are compared by == or !="),
        ("a is 3", "`is` takes None"),
        ("a == 1e999", "a number is finite"),
        ("a == 1 if b else 2", r"no part of a filter.*: a == 1 \[HERE\]if"),
        (f"a == '{'x' * 70_000}'", "over 65,536 bytes"),
        (" or ".join(["a == 1"] * 201), "over 200 comparisons: list values as"),
        ("a == '\ud800'", "no valid text"),
    ],
)
def test_what_cannot_be_read_is_one_sentence_with_the_place(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_filter(text)


@pytest.mark.parametrize(
    "text",
    ["not " * 16_000 + "a == 1", "-" * 60_000 + "1", "(" * 500 + "a", "a" + ".b" * 30_000, "1+" * 20_000, "a[" * 9_000],
)
def test_deep_filters_are_refused_on_a_small_stack(text: str) -> None:
    messages = []

    def read() -> None:
        with pytest.raises(UsageError) as raised:
            parse_filter(text)
        messages.append(str(raised.value))

    before = threading.stack_size(256 << 10)
    try:
        reader = threading.Thread(target=read)
        reader.start()
    finally:
        threading.stack_size(before)
    reader.join()
    assert "the filter cannot be read" in messages[0]
    assert len(messages[0]) < 300


def values_of(passage: Passage, key: str) -> list[Any]:
    """The values of a key in a passage, by walking its metadata."""
    if key in ("id", "title"):
        return [text for text in (passage.document_id if key == "id" else passage.title,) if text]
    found = []

    def walk(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for inner, one in value.items():
                walk(f"{name}.{inner}", one)
        elif isinstance(value, list):
            for one in value:
                walk(name, one)
        elif value is not None and name == key:
            found.append(value)

    for name, value in passage.metadata.items():
        walk(name, value)
    return found


def alike(one: Any, other: Any) -> bool:
    kinds = [(isinstance(value, bool), isinstance(value, str)) for value in (one, other)]
    return kinds[0] == kinds[1]


class Case(NamedTuple):
    """A filter as text, whether a passage passes it, and the values that each of its keys is compared with."""

    text: str
    passes: Callable[[Passage], bool]
    compared: list[tuple[str, Sequence[Any]]]


SIGNS: Final[dict[str, Any]] = {"==": eq, "<": lt, "<=": le, ">": gt, ">=": ge}


def holds(key: str, values: Sequence[Any], test: Callable[[Any, Any], bool]) -> Callable[[Passage], bool]:
    return lambda passage: any(
        test(one, other) for one in values_of(passage, key) for other in values if alike(one, other)
    )


def negate(case: Case) -> Case:
    return Case(f"not ({case.text})", lambda passage: not case.passes(passage), case.compared)


def join(word: str, cases: list[Case]) -> Case:
    every = all if word == "and" else any
    text = f" {word} ".join(f"({case.text})" for case in cases)
    compared = [one for case in cases for one in case.compared]
    return Case(text, lambda passage: every(case.passes(passage) for case in cases), compared)


def compare(key: str, sign: str, value: Any) -> Case:
    if sign == "!=":
        return negate(compare(key, "==", value))._replace(text=f"{key} != {value!r}")
    return Case(f"{key} {sign} {value!r}", holds(key, [value], SIGNS[sign]), [(key, [value])])


def among(key: str, values: list[Any]) -> Case:
    return Case(f"{key} in {tuple(values)!r}", holds(key, values, eq), [(key, values)])


def exists(key: str) -> Case:
    return Case(f"{key} is not None", lambda passage: bool(values_of(passage, key)), [(key, [])])


def matches(key: str, value: str, how: str) -> Case:
    """Part of a text; of the items of lists, which only the key `any` holds, a whole one."""
    if how == "in":

        def test(passage: Passage) -> bool:
            is_list = isinstance(passage.metadata.get(key), list)
            return any(
                one == value if is_list else value in one for one in values_of(passage, key) if isinstance(one, str)
            )

        return Case(f"{value!r} in {key}", test, [(key, [value])])
    return Case(
        f"{key}.{how}({value!r})", holds(key, [value], lambda one, other: getattr(one, how)(other)), [(key, [value])]
    )


WORDS: Final = [f"w{number}" for number in range(7)]
SCALARS: Final = st.sampled_from([0, 1, 2020, 2.5, -1, "en", "de", "", "é", "x" * 600, True, False, None])
METADATA: Final = st.fixed_dictionaries(
    {},
    optional={
        "year": st.integers(2018, 2022),
        "lang": st.sampled_from(["en", "de", "fr"]),
        "any": SCALARS | st.lists(SCALARS, max_size=3),
        "author": st.fixed_dictionaries({}, optional={"name": st.sampled_from(["Ada", "Bo"]), "age": SCALARS}),
    },
)
TEXT: Final = st.lists(st.sampled_from(WORDS), min_size=1, max_size=7).map(" ".join)
DOCUMENT: Final = st.tuples(METADATA, st.sampled_from(["", "A", "B c"]), st.lists(TEXT, min_size=1, max_size=4))
NUMBERED: Final = st.sampled_from(["year", "any", "author.age"])
NAMED: Final = st.sampled_from(["lang", "any", "author.name", "author.age", "title", "id"])
TEXTS: Final = st.sampled_from(["en", "de", "", "é", "Ada", "A", "B c", "d1", "d3", "x" * 600, "x", "it's \\"])
EVERY_SIGN: Final = st.sampled_from(["!=", *SIGNS])
VALUES: Final = st.sampled_from([0, 1, 2020, "en", "fr", "d1", "d2", "", True, False])
CONDITIONS: Final = st.one_of(
    st.builds(compare, NUMBERED, EVERY_SIGN, st.sampled_from([0, 1, 2019, 2020, 2.5, -1])),
    st.builds(compare, NAMED, EVERY_SIGN, TEXTS),
    st.builds(among, NUMBERED | NAMED, st.lists(VALUES, min_size=1, max_size=4)),
    st.builds(exists, NUMBERED | NAMED),
    st.builds(matches, NAMED, TEXTS, st.sampled_from(["in", "startswith", "endswith"])),
)
SEARCHED: Final = st.recursive(
    CONDITIONS,
    lambda parts: (
        st.builds(negate, parts)
        | st.builds(join, st.sampled_from(["and", "or"]), st.lists(parts, min_size=1, max_size=3))
    ),
    max_leaves=5,
)
QUERY: Final = st.lists(st.sampled_from([*WORDS, "x"]), max_size=5).map(" ".join)


def documents_as_passages(documents: Iterable[tuple[int, Any]]) -> list[Passage]:
    made: list[Passage] = []
    for name, (metadata, title, texts) in documents:
        made += [
            Passage(len(made) + place, f"d{name}", title, text, metadata=metadata) for place, text in enumerate(texts)
        ]
    return made


def searched(folder: Path, parts: Sequence[Sequence[Any]], removed: Collection[int]) -> Index:
    """An index of the first documents that was updated with the others, and lost those with these numbers."""
    named, first = [*enumerate(document for part in parts for document in part)], 0
    for place, part in enumerate(parts):
        some = documents_as_passages(named[first : first + len(part)])
        first += len(part)
        if place:
            update_index(folder, some, encoders={"main": LetterEncoder()})
        else:
            build_index(some, folder, encoder=LetterEncoder())
    if removed:
        update_index(folder, remove=[f"d{name}" for name in removed])
    return open_index(folder)


def is_wrong(passages: Sequence[Passage], case: Case) -> bool:
    """Whether a key is in no passage, or a value is unlike all values of its key."""
    for key, compared in case.compared:
        values = [value for one in passages for value in values_of(one, key)]
        values += ["x"] if key in ("id", "title") else []
        if not values or not all(any(alike(value, other) for other in values) for value in compared):
            return True
    return False


def check_hits(index: Index, passages: Sequence[Passage], case: Case, query: str, k: int) -> None:
    """Search with a filter in every way."""
    allowed, wanted = {one.number for one in passages if case.passes(one)}, parse_filter(case.text)
    mask_N = index.columns.mask(wanted)
    assert {*np.flatnonzero(mask_N).tolist()} == allowed, wanted.text
    bm25, dense = index.bm25, index.dense(encoder=LetterEncoder())
    for retriever in (bm25, dense):
        best = [hit for hit in retriever.retrieve([query], len(passages)).of(0) if hit[0] in allowed][:k]
        found = retriever.only(mask_N)
        hits = found.retrieve([query], k).of(0)
        assert [score for _, score in hits] == [score for _, score in best]
        assert hits == best if retriever is bm25 else {number for number, _ in hits} <= allowed
        assert found.config.items() >= mask_config(mask_N).items()
    narrow = bm25.only(mask_N)
    assert streamed(narrow, [query, f"{query} w1", query], k).of(2) == narrow.retrieve([query], k).of(0)
    fused = Hybrid(bm25, dense, FusionOptions(depth=len(passages)))
    for other in (fused, RandomRetriever(len(passages))):
        drawn = {number for number, _ in other.only(mask_N).retrieve([query], k).of(0)}
        assert drawn <= allowed
        assert len(drawn) == min(k, len(allowed)) or not query.strip()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [6, campaign(250)])
def test_hits_are_the_best_of_all_passages_that_pass(tmp_path_factory: pytest.TempPathFactory, count: int) -> None:
    """After updates and removals; by scans and by streams, dense, fused and at random: 12 filters an index."""

    @settings(max_examples=count, deadline=None)
    @given(
        parts=st.lists(st.lists(DOCUMENT, min_size=1, max_size=5), min_size=1, max_size=3),
        data=st.data(),
        asked=st.lists(st.tuples(SEARCHED, QUERY, st.integers(1, 5)), min_size=12, max_size=12),
    )
    def check(parts: list[list[Any]], data: st.DataObject, asked: list[tuple[Case, str, int]]) -> None:
        count = sum(map(len, parts))
        removed = data.draw(st.sets(st.sampled_from(range(count)), max_size=count - 1))
        index = searched(tmp_path_factory.mktemp("filters") / "index", parts, removed)
        passages = [*index.passages]
        for case, query, k in asked:
            if is_wrong(passages, case):
                with pytest.raises(UsageError, match="the keys are|cannot be compared"):
                    index.columns.mask(parse_filter(case.text))
            else:
                check_hits(index, passages, case, query, k)

    check()


def test_damaged_columns_are_noticed(tmp_path: Path) -> None:
    searched(tmp_path / "index", [[({"year": 2018, "lang": "en"}, "A", ["w1"])]], [])
    index = open_index(tmp_path / "index")
    file, wanted = tmp_path / "index" / COLUMNS_FILE, parse_filter("year == 2018")
    whole = file.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(DamagedFolderError):
            IndexColumns("index", index.passages, file).mask(wanted)
    searched(tmp_path / "more", [[({"year": 2018}, "A", ["w1", "w2"])]], [])
    with pytest.raises(DamagedFolderError, match="its ranges do not fit the passages"):
        IndexColumns("index", index.passages, tmp_path / "more" / COLUMNS_FILE).mask(wanted)


@settings(max_examples=examples(30))
@given(
    seed=st.integers(0, 1 << 30),
    count=st.sampled_from([1, 63, 64, 700, 1024, 3000]),
    share=st.sampled_from([0.0, 0.001, 0.1, 0.9, 1.0]),
    k=st.sampled_from([1, 16, 1000]),
    partition=st.sampled_from([1024, 1 << 17]),
)
def test_lookups_and_streams_of_many_passages(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, share: float, k: int, partition: int
) -> None:
    """Any passages may pass; streams go on with other filters than they began with."""
    bm25 = indexed(tmp_path_factory.mktemp("index"), pieces(words(seed, 6 * count, 300), 6))
    draw = np.random.default_rng(seed)
    queries = strides(words(seed, 200, 300), 12, 4)
    whole = bm25.retrieve(queries, count)
    stream = Stream(bm25.collection, k, partition)
    for narrow in (share, 0.5):
        rows = draw.random(count) < narrow
        found = bm25.only(rows)
        hits = found.retrieve(queries, k)
        for row in range(len(queries)):
            assert hits.of(row) == [hit for hit in whole.of(row) if rows[hit[0]]][:k]
        terms = [bm25.terms(query.split()) for query in queries]
        assert_equal(found_by(stream, found._batch(terms, k)).first(hits.numbers_QK.shape[1]), hits)
        streamed(found, queries, k, partition)

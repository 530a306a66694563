"""Dense and hybrid retrieval through the command line, end to end, on an encoder of the tests' own."""

from pathlib import Path

import pytest

from tests.cli.program import MODEL_LENGTH, done, failed, printed, ralm, write_stories
from tests.tiny_encoders import save_tiny_bert


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a text, two encoders, and an index for both kinds of retrieval made by the program itself."""
    folder = write_stories(tmp_path_factory.mktemp("work"))
    save_tiny_bert(folder / "bert")
    save_tiny_bert(folder / "other", seed=1)
    command = ["index", folder / "corpus.jsonl", "--out", folder / "index", "--words", 10, "--retriever", "both"]
    answer = done(*command, "--encoder", folder / "bert", "--encoder-args", "passage_length=40", "--faiss", "HNSW8")
    assert "vectors of 32 dimensions in a FAISS index HNSW8\nencoded: 6 passages" in answer.out
    return folder


@pytest.fixture(scope="module")
def model(tiny_folders: dict[str, Path]) -> Path:
    return tiny_folders["gpt2"]


def found(*arguments: object) -> list[tuple[int, float]]:
    return [(hit["passage"], hit["score"]) for hit in printed("search", *arguments)["hits"]]


def test_search_by_each_retriever(work: Path) -> None:
    query = [work / "index", "sheep on the hill", "-k", "4"]
    by_bm25, by_dense = found(*query), found(*query, "--retriever", "dense")
    by_ranks = found(*query, "--retriever", "hybrid")
    by_scores = found(*query, "--retriever", "hybrid:fusion=interpolation,dense_weight=0")
    assert len(by_dense) == 4
    assert len({tuple(hits) for hits in (by_bm25, by_dense, by_ranks, by_scores)}) == 4
    assert [number for number, _ in by_scores[:2]] == [number for number, _ in by_bm25[:2]]
    assert found(*query, "--retriever", "dense:ef_search=50") == by_dense


def test_another_encoder_is_refused_unless_allowed(work: Path) -> None:
    command = ["search", work / "index", "sheep", "--retriever"]
    failed(ralm(*command, f"dense:query_encoder={work / 'other'}"), 1, "was built with another encoder")
    done(*command, f"dense:query_encoder={work / 'other'},any_encoder=true")
    done(*command, f"dense:query_encoder={work / 'bert'}")


def test_eval_asks_dense_retrieval_with_longer_queries(work: Path, model: Path) -> None:
    command = ["eval", work / "text.txt", "--lm", model, "--index", work / "index", *MODEL_LENGTH]
    command += ["--limit-tokens", "90", "--retriever"]
    for retriever, tokens in (("bm25", 32), ("dense", 64), ("hybrid", 64)):
        config = printed(*command, retriever)["config"]
        assert (config["passages"]["retriever"], config["plan"]["query_tokens"]) == (retriever, tokens)
    config = printed(*command, "dense", "--query-tokens", "8")["config"]
    assert config["plan"]["query_tokens"] == 8
    assert config["passages"]["efSearch"] == 128


def test_what_an_interrupted_build_encoded_is_taken(work: Path, tmp_path: Path) -> None:
    """Here one that FAISS refused in the end."""
    command = ["index", work / "corpus.jsonl", "--out", tmp_path / "i", "--retriever", "dense"]
    command += ["--encoder", work / "bert", "--faiss"]
    failed(ralm(*command, "IVF99,Flat"), 2, "cannot be trained on 3 vectors")
    assert [path.name for path in tmp_path.iterdir()] == ["i.unfinished"]
    answer = done(*command, "Flat")
    assert answer.out.endswith("taken from vectors that were there: 3\n")
    assert "encoded:" not in answer.out
    assert [path.name for path in tmp_path.iterdir()] == ["i"]


def test_what_does_not_go_together(work: Path, tmp_path: Path) -> None:
    index = ["index", work / "corpus.jsonl", "--out", tmp_path / "i"]
    failed(ralm(*index, "--retriever", "dense"), 2, "--retriever dense or both and --encoder go together")
    failed(ralm(*index, "--encoder", work / "bert"), 2, "--encoder go together")
    dense = ["--retriever", "dense", "--encoder", work / "bert"]
    failed(ralm(*index, *dense, "--faiss", "Nonsense"), 2, "FAISS cannot make an index 'Nonsense'")
    failed(ralm(*index, "--retriever", "dense", "--encoder", tmp_path / "none"), 1, "there is no folder")
    done(*index, *dense, "--words", 10)
    failed(ralm("search", tmp_path / "i", "sea"), 2, "was not built for BM25; use --retriever dense")
    failed(ralm("search", tmp_path / "i", "sea", "--retriever", "dense:nprobe=4"), 2, "is for an IVF index")
    assert [path.name for path in tmp_path.iterdir()] == ["i"]


def test_a_second_set_of_vectors(work: Path, model: Path, tmp_path: Path) -> None:
    """Added, chosen by name and by default, replaced where that is said; an index of BM25 becomes one for both."""
    made = ["index", work / "corpus.jsonl", "--out", tmp_path / "i", "--words", 10]
    done(*made)
    query = ["search", tmp_path / "i", "sheep on the hill", "-k", 4, "--retriever"]
    failed(ralm(*query, "dense"), 2, "or add vectors with `ralm encode`")
    encode = ["encode", tmp_path / "i", "--encoder"]
    answer = done(*encode, work / "bert", "--encoder-args", "passage_length=40")
    assert f"{tmp_path / 'i'}: vectors main (default)\nvectors of 32 dimensions in a FAISS index Flat" in answer.out
    assert "encoded: 6 passages" in answer.out
    answer = done(*encode, work / "other", "--vectors", "v2", "--no-default")
    assert "vectors main (default), v2\n" in answer.out
    first, second = found(*query[1:], "dense"), found(*query[1:], "dense:vectors=v2")
    assert first == found(*query[1:], "dense:vectors=main") != second
    assert found(*query[1:], "hybrid:vectors=v2") != found(*query[1:], "hybrid")
    failed(ralm(*query, "dense:vectors=v3"), 2, "has no vectors 'v3'")
    failed(ralm(*query, "bm25:vectors=v2"), 2, "--retriever bm25 has no key 'vectors'")
    failed(ralm(*encode, work / "other", "--vectors", "v2"), 1, "already has vectors 'v2'")
    failed(ralm(*encode, work / "other", "--vectors", "../v2"), 2, "vectors cannot be called")
    done(*encode, work / "other", "--vectors", "main", "--force")
    assert found(*query[1:], "dense") == second
    assert [path.name for path in tmp_path.iterdir()] == ["i"]
    read = ["eval", work / "text.txt", "--lm", model, "--index", tmp_path / "i", *MODEL_LENGTH, "--limit-tokens", 60]
    done(*read, "--retriever", "dense", "--over", "retriever.vectors=main,v2", "--json")
    done(*read, "--retriever", "dense", "--over", "query-tokens=8,16", "--json")
    done("check", tmp_path / "i")

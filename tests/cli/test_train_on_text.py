"""`ralm train retriever` on training text: passages are retrieved, scored and encoded again on the way."""

import json
from pathlib import Path

import numpy as np
import pytest

from ralm.lm.registry import load_language_model
from ralm.retrieval.index import open_index
from ralm.storage.manifest import read_manifest
from ralm.storage.outputs import FolderKind
from ralm.training.candidates import OnlineExamples
from ralm.training.options import CandidateOptions, ExampleOptions
from tests.cli.program import Answer, done, failed, ralm
from tests.tiny_encoders import save_tiny_bert

SMALL = ["--continuation-tokens", 8, "--prefix-tokens", 12, "--sequence-tokens", 24, "--query-tokens", 12]
SMALL += ["--document-tokens", 24, "--candidates", 3]
STEPS = ["--steps", 6, "--batch", 2, "--refresh-every", 2, "--evaluate-every", 3, "--evaluated", 4]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    random = np.random.default_rng(0)
    with (folder / "corpus.jsonl").open("w") as stream:
        for number in range(20):
            text = " ".join(f"word{word}" for word in random.zipf(1.5, 30) % 50)
            stream.write(json.dumps({"id": f"d{number}", "text": text}) + "\n")
    save_tiny_bert(folder / "bert")
    command = ["index", folder / "corpus.jsonl", "--out", folder / "index", "--words", 10, "--retriever", "dense"]
    done(*command, "--encoder", folder / "bert")
    return folder


def train(work: Path, lm: Path, out: Path, *more: object) -> Answer:
    return ralm(
        *("train", "retriever", work / "corpus.jsonl", "--index", work / "index", "--lm", lm, "--out", out),
        *(*SMALL, *STEPS, "--examples", 30, *more),
    )


@pytest.mark.slow
def test_both_encoders_learn_and_the_index_gets_their_vectors(
    work: Path, tiny_folders: dict[str, Path], tmp_path: Path
) -> None:
    lm, out = tiny_folders["gpt2"], tmp_path / "tuned"
    answer = train(work, lm, out)
    assert answer.status == 0, answer.err
    assert "loss of the held-out examples: " in answer.out
    assert "--vectors tuned" in answer.out
    assert list(tmp_path.iterdir()) == [out]
    assert read_manifest(out, kind=FolderKind("encoder")).counts["steps"] == 6
    done("search", work / "index", "word1", "--retriever", "dense", "--vectors", "tuned", "--json")
    assert list(open_index(work / "index").vectors)[1:] == ["tuned"]
    failed(train(work, lm, out), 1, "already has vectors 'tuned', which are kept; choose another name")


def test_scores_are_means_of_tokens(work: Path, tiny_folders: dict[str, Path]) -> None:
    """Against one request a candidate, with the retriever of the moment."""
    index = open_index(work / "index")
    model = load_language_model(str(tiny_folders["gpt2"]))
    options = ExampleOptions(
        examples=6, continuation_tokens=8, prefix_tokens=12, sequence_tokens=24, query_tokens=12, per_sequence=1
    )
    examples = OnlineExamples(str(work / "corpus.jsonl"), index, model, options, CandidateOptions(document_tokens=24))
    some_B = np.array([4, 1])
    hits = examples.candidates(some_B, index.dense(), 3)
    means_BK = examples.score(some_B, hits)
    assert means_BK.shape == hits.numbers_QK.shape == (2, 3)
    for row, number in enumerate(some_B.tolist()):
        assert examples.documents_E[number] not in {index.passages[n].document_id for n, _ in hits.of(row)}
        alone = [examples.score(some_B[row : row + 1], type(hits).from_pairs([[hit]]))[0, 0] for hit in hits.of(row)]
        np.testing.assert_allclose(means_BK[row], alone, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--init", "bert"], "--init has no effect without SIGNALS"),
        (["--document-tokens", 60], "do not fit together"),
        (["--vectors", "fine"], "has no vectors 'fine'"),
    ],
)
def test_bad_input(work: Path, tiny_folders: dict[str, Path], tmp_path: Path, options: list[object], said: str) -> None:
    answer = train(work, tiny_folders["gpt2"], tmp_path / "out", *options)
    assert answer.status != 0
    assert said in answer.err
    assert list(tmp_path.iterdir()) == []


def test_text_needs_a_model_and_an_index(work: Path, tmp_path: Path) -> None:
    answer = ralm("train", "retriever", work / "corpus.jsonl", "--out", tmp_path / "out")
    failed(answer, 2, "is training text: give --index and --lm too")


def test_a_cluster_that_is_not_there_is_known_before_anything_is_trained(work: Path, tmp_path: Path) -> None:
    failed(train(work, tmp_path, tmp_path / "out", "--ray", "127.0.0.1:9"), 1, "there is no Ray cluster at 127.0.0.1:9")

"""`ralm train retriever` on signals and on training text, and what its result is used for, end to end."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from ralm.lm.registry import load_language_model
from ralm.retrieval.index import open_index
from ralm.storage.manifest import read_manifest
from ralm.storage.outputs import FolderKind
from ralm.training.examples import OnlineExamples
from ralm.training.options import CandidateOptions, ExampleOptions, LSROptions
from tests.cli.program import MODEL_LENGTH, STORIES, TEXT, Answer, done, failed, printed, ralm
from tests.test_kills import save_taught_index
from tests.tiny_encoders import save_tiny_bert

TRAIN = "--steps 6 --batch 4 --evaluate-every 3 --learning-rate 1e-3".split()


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    save_tiny_bert(folder / "bert")
    save_tiny_bert(folder / "other", seed=1)
    save_taught_index(folder)
    (folder / "text.txt").write_text(TEXT)
    return folder


def test_the_result_is_read_with_the_same_index(work: Path, tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    train = ["train", "retriever", work / "signals", "--index", work / "taught", "--out", out, *TRAIN]
    train += ["--held-out", 0.5]
    answer = done("--quiet", *train, "--init", work / "bert")
    assert re.search(r"gain on \d+ held-out examples of \d+ documents, in nats per token:", answer.out)
    assert len(re.findall(r"  (?:first|ensemble|  change).*: +[+-]\d\.\d{4}", answer.out)) == 6
    assert re.search(r"loss of the held-out examples: \d+\.\d{4} before, \d+\.\d{4} after", answer.out)
    assert f"search the same index with --retriever dense:query_encoder={out}" in answer.out
    assert "Writing model shards" not in answer.err
    done("check", out)
    before = ralm("search", work / "taught", "sea", "--retriever", "dense", "--json")
    after = done("search", work / "taught", "sea", "--retriever", f"dense:query_encoder={out}", "--json")
    assert len(json.loads(after.out)["hits"]) == len(STORIES)
    assert json.loads(after.out)["hits"] != json.loads(before.out)["hits"]
    read = ["eval", work / "text.txt", "--lm", tiny_folders["gpt2"], "--index", work / "taught", *MODEL_LENGTH]
    read += ["--retriever", "dense", "--limit-tokens", "60", "--json"]
    evaluated = done(*read, "--retriever", f"dense:query_encoder={out}")
    fingerprints = [
        json.loads(one.out)["config"]["passages"]["query_encoder"]["fingerprint"] for one in (evaluated, ralm(*read))
    ]
    assert len(set(fingerprints)) == 2
    failed(ralm(*train), 1, f"{out} already exists")
    again = printed(*train, "--force")
    assert (again["retriever"], again["steps"]) == (str(out), 6)
    assert [row["step"] for row in again["losses"]] == [0, 3, 6]


def test_bad_input_is_one_sentence(work: Path, tmp_path: Path) -> None:
    out = tmp_path / "tuned"

    def refused(status: int, said: str, *changed: object) -> None:
        train = ["train", "retriever", work / "signals", "--index", work / "taught", "--out", out, *TRAIN]
        failed(ralm(*train, *changed), status, said)
        assert not list(tmp_path.iterdir())

    refused(2, "a training reads one folder of signals, or training text", work / "text.txt")
    refused(1, "was built with another encoder", "--init", work / "other")
    refused(1, "is not a ralm index", "--index", work / "bert")
    refused(2, "--document-tokens has no effect without training text", "--document-tokens", "9")
    failed(
        ralm("train", "retriever", work / "taught", "--index", work / "taught", "--out", out), 1, "not a ralm signals"
    )


SMALL = ["--continuation-tokens", 8, "--prefix-tokens", 12, "--sequence-tokens", 24, "--query-tokens", 12]
SMALL += ["--document-tokens", 24, "--candidates", 3]
STEPS = ["--steps", 6, "--batch", 2, "--refresh-every", 2, "--evaluate-every", 3, "--evaluated", 4]


@pytest.fixture(scope="module")
def on_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def train(on_text: Path, lm: Path, out: Path, *more: object) -> Answer:
    return ralm(
        *("train", "retriever", on_text / "corpus.jsonl", "--index", on_text / "index", "--lm", lm, "--out", out),
        *(*SMALL, *STEPS, "--examples", 30, *more),
    )


@pytest.mark.slow
def test_both_encoders_learn_and_the_index_gets_their_vectors(
    on_text: Path, tiny_folders: dict[str, Path], tmp_path: Path
) -> None:
    lm, out = tiny_folders["gpt2"], tmp_path / "tuned"
    answer = train(on_text, lm, out)
    assert answer.status == 0, answer.err
    assert "loss of the held-out examples: " in answer.out
    assert "--retriever dense:vectors=tuned" in answer.out
    assert list(tmp_path.iterdir()) == [out]
    assert read_manifest(out, kind=FolderKind("encoder")).counts["steps"] == 6
    done("search", on_text / "index", "word1", "--retriever", "dense:vectors=tuned", "--json")
    assert list(open_index(on_text / "index").vectors)[1:] == ["tuned"]
    failed(train(on_text, lm, out), 1, "already has vectors 'tuned', which are kept; choose another name")


def test_scores_are_means_of_tokens(on_text: Path, tiny_folders: dict[str, Path]) -> None:
    """Against one request a candidate, with the retriever of the moment."""
    index = open_index(on_text / "index")
    model = load_language_model(str(tiny_folders["gpt2"]))
    options = ExampleOptions(
        examples=6, continuation_tokens=8, prefix_tokens=12, sequence_tokens=24, query_tokens=12, per_sequence=1
    )
    examples = OnlineExamples(
        str(on_text / "corpus.jsonl"), index, model, options, CandidateOptions(document_tokens=24)
    )
    some_B = np.array([4, 1])
    hits = examples.candidates(some_B, index.dense(), 3)
    loss = LSROptions()
    means_BK = examples.score(some_B, hits, loss)
    assert means_BK.shape == hits.numbers_QK.shape == (2, 3)
    for row, number in enumerate(some_B.tolist()):
        assert examples.documents_E[number] not in {index.passages[n].document_id for n, _ in hits.of(row)}
        alone = [
            examples.score(some_B[row : row + 1], type(hits).from_pairs([[hit]]), loss)[0, 0] for hit in hits.of(row)
        ]
        np.testing.assert_allclose(means_BK[row], alone, rtol=1e-5)
    likelihoods_BK = examples.score(some_B, hits, LSROptions(semantics="paper"))
    np.testing.assert_allclose(likelihoods_BK, np.exp(8 * means_BK), rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--init", "bert"], "--init has no effect without SIGNALS"), (["--document-tokens", 60], "do not fit together")],
)
def test_bad_input(
    on_text: Path, tiny_folders: dict[str, Path], tmp_path: Path, options: list[object], said: str
) -> None:
    answer = train(on_text, tiny_folders["gpt2"], tmp_path / "out", *options)
    assert answer.status != 0
    assert said in answer.err
    assert list(tmp_path.iterdir()) == []


def test_text_needs_a_model_and_an_index(on_text: Path, tmp_path: Path) -> None:
    answer = ralm("train", "retriever", on_text / "corpus.jsonl", "--out", tmp_path / "out")
    failed(answer, 2, "is training text: give --index and --lm too")

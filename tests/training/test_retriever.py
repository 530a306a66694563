"""Both encoders trained together: they find the best ones; passages are encoded anew; killed and resumed."""

import logging
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ralm.errors import FolderError, FolderExistsError, UsageError
from ralm.protocols import Retriever
from ralm.records import FloatArray, Hits, IntArray
from ralm.retrieval.build import build_index
from ralm.retrieval.dense.encoder import SentenceEncoder
from ralm.retrieval.dense.options import ENCODER_KIND, VECTORS, EncoderOptions
from ralm.retrieval.dense.search import open_vectors
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.update import add_vectors
from ralm.storage.manifest import read_manifest
from ralm.training.encoders import EncodersLoss, Refresh, inner_products, losses_of
from ralm.training.retriever import train_retriever
from tests.forked import Program, killing, started
from tests.tiny_encoders import save_tiny_bert, save_tiny_dpr
from tests.training.taught import OPTIONS, TRAINING, WORDS, Taught, passages


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learning")
    save_tiny_bert(folder / "bert")
    build_index(passages(), folder / "index", encoder=shared(folder))
    return folder


@pytest.fixture
def index(root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(root / "index", tmp_path / "index"))


def shared(folder: Path) -> SentenceEncoder:
    return SentenceEncoder(EncoderOptions(encoder=str(folder / "bert"), normalize=True))


def results(out: Path) -> Any:
    return read_manifest(out, kind=ENCODER_KIND).settings["results"]


def mean_passage(index: Index, vectors: str) -> float:
    """The mean number of the first passage for unseen queries; passages of higher numbers help more."""
    hits = index.dense(vectors=vectors).retrieve(["moon and salt", "hill", "the crow", "sea bread"], 1)
    return float(hits.numbers_QK.mean())


def test_both_encoders_learn_and_the_index_names_them(
    index: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """New vectors are swapped in on the way; at the end the index has a set of them that is not the default."""
    caplog.set_level(logging.INFO, logger="ralm")
    options = replace(OPTIONS, refresh_every=7)
    trained = train_retriever(Taught(), index, tmp_path / "out", options, replace(TRAINING, dropout=False))
    assert [path.name for path in tmp_path.iterdir() if "unfinished" in path.name or "partial" in path.name] == []
    losses: dict[Any, Any] = {row["step"]: row["held_out_loss"] for row in trained.losses}
    assert losses[trained.best_step] < losses[0]
    gains = trained.held_out
    assert gains is not None
    assert (gains["examples"], gains["documents"]) == (3, 3)
    assert gains["first_before"]["value"] + gains["first_change"]["value"] == pytest.approx(gains["first"]["value"])
    assert gains["first"]["value"] >= gains["first_before"]["value"] > 0
    assert gains["ensemble_change"]["value"] > 0, "passages of higher numbers help more"
    assert [record.message for record in caplog.records if "encoded again" in record.message] == [
        "step 8: the passages were encoded again"
    ], "at a checkpoint"
    opened = open_index(index)
    assert list(opened.vectors) == ["main", "out"]
    assert opened.vectors["out"]["encoder"] == str(tmp_path / "out")
    assert mean_passage(opened, "out") > mean_passage(opened, "main")
    with pytest.raises(FolderExistsError, match="already has vectors 'out'"):
        train_retriever(Taught(), index, tmp_path / "elsewhere" / "out", OPTIONS, TRAINING)


def test_a_version_holds_what_the_encoders_of_its_step_encode(root: Path, tmp_path: Path) -> None:
    """One that is there is kept; those that no checkpoint searches are removed, and those of steps not done."""
    encoder, opened = shared(root), open_index(root / "index")
    refresh = Refresh(encoder, opened, OPTIONS, TRAINING)
    expected = encoder.encode_passages(list(opened.passages))
    first = refresh.retriever
    refresh.begin(tmp_path, 0)
    for number in (4, 8, 12):
        (tmp_path / f"checkpoint-{number}").mkdir()
        refresh.make_version(number)
        encoder.query_model[0].auto_model.embeddings.word_embeddings.weight.data *= 2
        if number == 8:
            shutil.rmtree(tmp_path / "checkpoint-4")
    assert versions(tmp_path) == ["version-00000004", "version-00000008", "version-00000012"]
    shutil.rmtree(tmp_path / "checkpoint-8")
    refresh.make_version(16)
    assert versions(tmp_path) == ["version-00000008", "version-00000012", "version-00000016"]
    refresh.begin(tmp_path, 12)
    assert refresh.retriever is not first
    assert versions(tmp_path) == ["version-00000008", "version-00000012"]
    refresh.make_version(12)
    assert np.abs(vectors_of(tmp_path, 8) - expected).max() > 1e-3
    (tmp_path / "checkpoint-12").rmdir()
    again = Refresh(shared(root), opened, OPTIONS, TRAINING)
    again.begin(tmp_path, 3)
    again.make_version(4)
    np.testing.assert_allclose(vectors_of(tmp_path, 4), expected, atol=1e-6)


def versions(work: Path) -> list[str]:
    return sorted(path.name for path in work.glob("version-*"))


def vectors_of(work: Path, version: int) -> FloatArray:
    file = work / f"version-{version:08d}" / VECTORS
    vectors: FloatArray = open_vectors(file, file, len(WORDS)).reconstruct_n(0, len(WORDS))
    return vectors


def test_a_pair_of_encoders_is_trained(tmp_path: Path) -> None:
    """DPR's two encoders, whose passages are read with a separator of their own also after they were saved."""
    save_tiny_dpr(tmp_path / "question", question=True, seed=3)
    save_tiny_dpr(tmp_path / "context", question=False, seed=4)
    named = EncoderOptions(encoder=str(tmp_path / "context"), query_encoder=str(tmp_path / "question"))
    build_index(passages(), tmp_path / "index", encoder=SentenceEncoder(named))
    options = replace(OPTIONS, refresh_every=None)
    train_retriever(Taught(), tmp_path / "index", tmp_path / "tuned", options, replace(TRAINING, steps=4, held_out=0))
    opened = open_index(tmp_path / "index")
    tuned, before = SentenceEncoder(opened.encoder_options("tuned")), SentenceEncoder(named)
    assert opened.vectors["tuned"]["encoder"] == str(tmp_path / "tuned" / "passages")
    assert tuned.passage_text(passages()[0]) == before.passage_text(passages()[0])
    assert "[SEP]" in tuned.passage_text(passages()[0])
    assert np.abs(tuned.encode_queries(["moon"]) - before.encode_queries(["moon"])).max() > 1e-3
    assert np.abs(tuned.encode_passages(passages()[:1]) - before.encode_passages(passages()[:1])).max() > 1e-3
    assert len(opened.dense(vectors="tuned").retrieve(["moon"], 3).of(0)) == 3


def test_losses_are_those_of_fixed_passages(root: Path, index: Path, tmp_path: Path) -> None:
    """The encoders of the moment; an example with one candidate has no loss, and no gradient that is not finite."""
    examples, opened, encoder = Few(), open_index(index), shared(root)
    first = opened.dense(encoder=encoder)
    refresh = Refresh(encoder, opened, OPTIONS, TRAINING)
    student = EncodersLoss(encoder, examples, opened, refresh, OPTIONS)
    student.begin(tmp_path, np.arange(4), 0)
    losses = student.losses(np.array([0, 1, 2]))
    hits = first.retrieve(examples.queries(np.array([0, 2])), 5)
    vectors = encoder.encode_passages(list(opened.passages))[hits.numbers_QK]
    scores = examples.score(np.array([0, 2]), hits, OPTIONS).astype(np.float32)
    queries = encoder.query_tensor(examples.queries(np.array([0, 2])))
    products = inner_products(queries, queries.new_tensor(vectors))
    from_vectors = losses_of(products, scores, hits.numbers_QK, OPTIONS)
    np.testing.assert_allclose(losses[[0, 2]].detach(), from_vectors.detach(), rtol=1e-4)
    assert losses[1] == 0
    losses.sum().backward()  # type: ignore[no-untyped-call]
    gradients = [one.grad for one in student.model.parameters() if one.grad is not None]
    assert all(one.isfinite().all() for one in gradients)
    assert any(one.abs().sum() > 0 for one in gradients)


def test_an_example_for_which_nothing_is_found_is_read_without_a_passage(root: Path, index: Path) -> None:
    class Nothing(Taught):
        def candidates(self, examples_B: IntArray, retriever: Retriever, k: int) -> Hits:
            hits = super().candidates(examples_B, retriever, k)
            hits.numbers_QK[examples_B == 1] = -1
            return hits

    alone_BT, read = Nothing().read(np.array([0, 1]), open_index(index).dense(encoder=shared(root)), 3)
    np.testing.assert_array_equal(read.first_ET()[1], alone_BT[1])
    np.testing.assert_allclose(read.ensemble_ET(0.1)[1], alone_BT[1])
    assert (read.ensemble_ET(0.1)[0] > alone_BT[0]).all()


class Few(Taught):
    """Its second example may be shown one passage only."""

    def candidates(self, examples_B: IntArray, retriever: Retriever, k: int) -> Hits:
        hits = super().candidates(examples_B, retriever, k)
        hits.numbers_QK[examples_B == 1, 1:] = -1
        return hits


def test_what_does_not_belong_together(root: Path, index: Path, tmp_path: Path) -> None:
    """One sentence each, before anything is trained."""

    def fails(error: type[Exception], match: str, index: Path, out: str = "out", **options: str) -> None:
        with pytest.raises(error, match=match):
            train_retriever(Taught(), index, tmp_path / out, replace(OPTIONS, **options), TRAINING)  # type: ignore[arg-type]
        assert not list(tmp_path.glob(f"{out}*"))

    build_index(passages(), tmp_path / "words")
    fails(UsageError, "was not built for dense retrieval", tmp_path / "words")
    fails(UsageError, "has no vectors 'fine'", index, vectors="fine")
    fails(UsageError, "cannot be called 'a b'", index, out="a b")
    fails(FolderExistsError, "already has vectors 'main'", index, out="main")
    save_tiny_bert(tmp_path / "bert")
    add_vectors(tmp_path / "words", SentenceEncoder(EncoderOptions(encoder=str(tmp_path / "bert"))))
    save_tiny_bert(tmp_path / "bert", seed=5)
    fails(FolderError, "was built with another encoder", tmp_path / "words")


@pytest.mark.slow
def test_a_training_that_was_killed_while_it_encoded_ends_as_an_undisturbed_one(
    root: Path, index: Path, tmp_path: Path
) -> None:
    """The version of the same weights is made again, from the vectors that are there."""
    work = tmp_path / "out.unfinished"
    program = start(tmp_path, killing("version-"))
    _, errors = program.communicate(timeout=200)
    assert program.returncode == -signal.SIGKILL, errors
    assert not (tmp_path / "out").exists()
    assert list(open_index(index).vectors) == ["main"]
    assert list(work.glob("encoding/*.npz"))
    assert not list(work.glob("version-????????"))
    run_again(tmp_path)
    check_trained(tmp_path)
    whole = tmp_path / "whole"
    shutil.copytree(root / "index", whole / "index")
    run_again(whole)
    assert results(tmp_path / "out") == results(whole / "out")
    assert (tmp_path / "out" / "losses.csv").read_bytes() == (whole / "out" / "losses.csv").read_bytes()


def run_again(folder: Path) -> None:
    program = start(folder)
    _, errors = program.communicate(timeout=300)
    assert program.returncode == 0, errors


def test_a_training_that_was_killed_while_it_encoded_the_passages_goes_on_there(index: Path, tmp_path: Path) -> None:
    """Not a step is trained again; with other settings, what is there is kept."""
    options = replace(OPTIONS, refresh_every=None)
    shutil.copytree(index, tmp_path / "without")
    before = train_retriever(Taught(), index, tmp_path / "out", options, TRAINING)
    weights = (tmp_path / "out" / "model.safetensors").stat()
    shutil.rmtree(index)
    (tmp_path / "without").rename(index)
    with pytest.raises(FolderExistsError, match="out already exists and is kept"):
        train_retriever(Taught(), index, tmp_path / "out", options, replace(TRAINING, seed=5))
    taught = Taught()
    assert train_retriever(taught, index, tmp_path / "out", options, TRAINING) == before
    assert (tmp_path / "out" / "model.safetensors").stat() == weights
    check_trained(tmp_path)

    train_retriever(taught, index, tmp_path / "out", options, TRAINING, force=True)
    assert {4, 6} <= {len(asked) for asked in taught.asked}, "all is done again"
    check_trained(tmp_path)


def check_trained(folder: Path) -> None:
    """An index and the encoder that it names are there, whole, and nothing else."""
    assert list(open_index(folder / "index").vectors) == ["main", "out"]
    assert sorted(path.name for path in folder.iterdir()) == ["index", "out"]
    steps = [row.split(",")[0] for row in (folder / "out" / "losses.csv").read_text().splitlines()]
    assert steps == ['"step"', "0", "4", "8", "12"]
    assert read_manifest(folder / "out", kind=ENCODER_KIND).counts["steps"] == 12


def start(folder: Path, more: str = "") -> Program:
    """The program that trains, in a session of its own."""
    return started("tests.training.taught", folder, before=more)

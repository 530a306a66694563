"""The query encoder trained alone: what it learns, what becomes of it, and how a killed training goes on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import JsonValue
from sentence_transformers import SentenceTransformer

from ralm.errors import DamagedFolderError, FolderError, RalmWarning, UsageError
from ralm.retrieval.build import build_index
from ralm.retrieval.dense.encoder import SentenceEncoder
from ralm.retrieval.dense.options import ENCODER_KIND, EncoderOptions
from ralm.retrieval.index import Index, open_index
from ralm.retrieval.update import add_vectors
from ralm.storage.manifest import read_manifest
from ralm.training.encoders import QueryEncoderLoss, inner_products, losses_of
from ralm.training.options import LikelihoodSemantics, QueryEncoderOptions, TrainingOptions
from ralm.training.retriever import train_query_encoder
from ralm.training.signals import Signals
from tests.reference import learning
from tests.tiny_encoders import save_tiny_bert, save_tiny_dpr
from tests.training.made_signals import save_signals
from tests.training.taught import WORDS, passages

QUICK = TrainingOptions(steps=30, batch=8, learning_rate=2e-3, evaluate_every=10, held_out=0.2)


def preferring(folder: Path, index: Index, wanted: int, count: int = 40) -> Signals:
    """Signals by which one passage always helps most; queries of random words."""
    draws = np.random.default_rng(0)
    candidates = [draws.permutation(len(WORDS))[:6].tolist() for _ in range(count)]
    candidates = [row if wanted in row else [*row[:-1], wanted] for row in candidates]
    queries = [" ".join(draws.choice(WORDS, 4)) for _ in range(count)]
    means = [[-1.0 if one == wanted else -3.0 for one in row] for row in candidates]
    return save_signals(folder, index.fingerprint, queries, candidates, means)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learning")
    save_tiny_bert(folder / "bert")
    save_tiny_bert(folder / "other", seed=1)
    save_tiny_bert(folder / "wide", width=40)
    build_index(passages(), folder / "index", encoder=encoder(folder / "bert"))
    preferring(folder / "signals", open_index(folder / "index"), wanted=7)
    return folder


def encoder(folder: Path, query: Path | None = None) -> SentenceEncoder:
    named = None if query is None else str(query)
    return SentenceEncoder(EncoderOptions(encoder=str(folder), query_encoder=named, normalize=True))


def first_places(index: Path, query_encoder: Path | None, wanted: int, queries: Sequence[str]) -> float:
    """The mean place of a passage among all, from 0, by the query encoder that the index names or another one."""
    opened = open_index(index)
    given = None
    if query_encoder is not None:
        given = SentenceEncoder(replace(opened.encoder_options(), query_encoder=str(query_encoder)))
    hits = opened.dense(encoder=given).retrieve(queries, len(WORDS))
    return float(np.mean([row.tolist().index(wanted) for row in hits.numbers_QK]))


def held_out_loss(row: dict[str, JsonValue]) -> float:
    loss = row["held_out_loss"]
    assert isinstance(loss, float)
    return loss


def test_what_helped_moves_to_the_front(root: Path, tmp_path: Path) -> None:
    """Passages keep their vectors; held-out queries find the passage that always helped."""
    index_before = sorted(open_index(root / "index").manifest.files.items())
    trained = train_query_encoder(root / "signals", tmp_path / "out", index=root / "index", training=QUICK)
    first, last = (held_out_loss(trained.losses[place]) for place in (0, -1))
    assert last < 0.5 * first
    results: Any = read_manifest(tmp_path / "out", kind=ENCODER_KIND).settings["results"]
    gains = results["held_out"]
    assert trained.held_out == gains
    assert gains["first"]["value"] == pytest.approx(gains["ensemble"]["value"]) == pytest.approx(2.0)
    assert gains["first"]["low"] is None, "the same in all documents"
    assert 0 <= gains["first_before"]["value"] < 2
    assert gains["ensemble_change"]["value"] > 0
    unseen = ["bread salt", "moon", "sea river hill"]
    before = first_places(root / "index", None, 7, unseen)
    assert first_places(root / "index", tmp_path / "out", 7, unseen) < min(before, 1.0)
    assert sorted(open_index(root / "index").manifest.files.items()) == index_before
    vectors = SentenceTransformer(str(tmp_path / "out")).encode_query(["moon"], normalize_embeddings=True)
    np.testing.assert_allclose(vectors, encoder(root / "bert", tmp_path / "out").encode_queries(["moon"]), atol=1e-6)


@pytest.mark.parametrize("semantics", ["mean", "paper"])
def test_losses_and_their_gradients_are_those_of_a_plain_loop(
    root: Path, tmp_path: Path, semantics: LikelihoodSemantics
) -> None:
    """With a candidate too few, one of no probability, and passages that recur."""
    index, own = open_index(root / "index"), encoder(root / "bert")
    queries, candidates = ["the sea", "crow and moon"], [[3, 5, 0], [5, 11]]
    means = [[-1.0, float("-inf"), -1.2], [-0.5, -0.4]]
    signals = save_signals(tmp_path / "two", index.fingerprint, queries, candidates, means)
    options = QueryEncoderOptions(gamma=0.3, beta=0.2, semantics=semantics)
    student = QueryEncoderLoss(own, signals, index.passage_vectors(), options)
    student.model.eval()
    losses = student.losses(np.array([0, 1]))
    queries_BD, passages_PD = own.encode_queries(queries), own.encode_passages(list(index.passages))
    scores = [(passages_PD[row] @ query).tolist() for row, query in zip(candidates, queries_BD, strict=True)]
    likelihoods = [[learning.lm_score([mean] * 4, semantics) for mean in row] for row in means]
    expected = [learning.divergence_loss(*both, 0.3, 0.2) for both in zip(scores, likelihoods, strict=True)]
    np.testing.assert_allclose(losses.detach(), expected, rtol=1e-4)
    by_query = torch.from_numpy(queries_BD).requires_grad_()
    vectors_BKD = torch.from_numpy(index.passage_vectors().of(signals.passages_EK))
    lm_scores_BK = options.lm_scores(signals.log_probs_EK, signals.tokens_E[:, None]).astype(np.float32)
    scores_BK = inner_products(by_query, vectors_BKD)
    losses_of(scores_BK, lm_scores_BK, signals.passages_EK, options).sum().backward()  # type: ignore[no-untyped-call]
    for row, gradient in enumerate(by_query.grad.numpy()):  # type: ignore[union-attr]
        by_score = learning.divergence_gradient(scores[row], likelihoods[row], 0.3, 0.2)
        np.testing.assert_allclose(gradient, by_score @ passages_PD[candidates[row]], rtol=1e-3, atol=1e-5)


def test_the_encoder_belongs_to_the_vectors_it_was_trained_for(root: Path, tmp_path: Path) -> None:
    """Also in another index with passages encoded by the same weights; not by others, and not if it was altered."""
    train_query_encoder(root / "signals", tmp_path / "out", index=root / "index", training=replace(QUICK, steps=2))
    tuned, own = tmp_path / "out", encoder(root / "bert")
    build_index(passages()[:4], tmp_path / "fewer", encoder=own)
    opened = open_index(tmp_path / "fewer")
    assert len(opened.dense(encoder=encoder(root / "bert", tuned)).retrieve(["sea"], 9).of(0)) == 4
    add_vectors(tmp_path / "fewer", encoder(root / "other"), name="other")
    with pytest.raises(FolderError, match="was trained for passages encoded by other weights"):
        open_index(tmp_path / "fewer").dense(vectors="other", encoder=encoder(root / "other", tuned))
    first_token = SentenceEncoder(EncoderOptions(encoder=str(root / "bert"), pooling="cls"))
    add_vectors(tmp_path / "fewer", first_token, name="first-token")
    with pytest.raises(FolderError, match=r"pooling is \['mean'\] here and was \['cls'\] there"):
        open_index(tmp_path / "fewer").dense(vectors="first-token", encoder=encoder(root / "bert", tuned))
    (tuned / "config.json").write_text("{}")
    with pytest.raises(DamagedFolderError, match="config.json has 2 bytes"):
        opened.dense(encoder=encoder(root / "bert", tuned))


def test_training_goes_on_from_a_trained_encoder(root: Path, tmp_path: Path) -> None:
    train_query_encoder(root / "signals", tmp_path / "once", index=root / "index", training=QUICK)
    options = QueryEncoderOptions(init=str(tmp_path / "once"))
    twice = train_query_encoder(root / "signals", tmp_path / "twice", options, QUICK, index=root / "index")
    once = open_losses(tmp_path / "once")
    assert held_out_loss(twice.losses[0]) == pytest.approx(min(once), rel=1e-4)
    assert first_places(root / "index", tmp_path / "twice", 7, ["sea", "barn"]) < 1


def open_losses(folder: Path) -> list[float]:
    rows = (folder / "losses.csv").read_text().splitlines()[1:]
    return [float(row.split(",")[3]) for row in rows]


def test_a_question_encoder_of_a_pair_is_trained(root: Path, tmp_path: Path) -> None:
    """DPR's question encoder with a projection: saved with all its parts, and found to belong to the vectors."""
    save_tiny_dpr(tmp_path / "question", question=True, seed=3, projection=16)
    save_tiny_dpr(tmp_path / "context", question=False, seed=4, projection=16)
    pair = SentenceEncoder(
        EncoderOptions(encoder=str(tmp_path / "context"), query_encoder=str(tmp_path / "question"), query_length=20)
    )
    build_index(passages(), tmp_path / "index", encoder=pair)
    preferring(tmp_path / "signals", open_index(tmp_path / "index"), wanted=2)
    options = QueryEncoderOptions(gamma=2.0)
    train_query_encoder(tmp_path / "signals", tmp_path / "out", options, QUICK, index=tmp_path / "index")
    assert first_places(tmp_path / "index", tmp_path / "out", 2, ["sea fox", "moon"]) < 1


def test_what_does_not_belong_together(root: Path, tmp_path: Path) -> None:
    """One sentence each, and nothing is left behind."""

    def fails(error: type[Exception], match: str, signals: Path, index: Path, **options: str) -> None:
        with pytest.raises(error, match=match):
            train_query_encoder(signals, tmp_path / "out", QueryEncoderOptions(**options), QUICK, index=index)  # type: ignore[arg-type]
        assert not list(tmp_path.glob("out*"))

    build_index(passages()[:5], tmp_path / "other", encoder=encoder(root / "bert"))
    fails(UsageError, "are of another index", root / "signals", tmp_path / "other")
    build_index(passages(), tmp_path / "index")
    preferring(tmp_path / "signals", open_index(tmp_path / "index"), wanted=1)
    fails(UsageError, "was not built for dense retrieval", tmp_path / "signals", tmp_path / "index")
    add_vectors(tmp_path / "index", encoder(root / "bert"))
    fails(UsageError, "has no vectors 'fine'", tmp_path / "signals", tmp_path / "index", vectors="fine")
    for init in ("other", "wide"):
        fails(FolderError, "was built with another encoder", root / "signals", root / "index", init=str(root / init))
    cls = SentenceTransformer(str(root / "bert"))
    cls[1].pooling_mode = "cls"
    cls.save_pretrained(str(tmp_path / "cls"))
    fails(FolderError, "pooling is", root / "signals", root / "index", init=str(tmp_path / "cls"))


def test_candidates_of_another_retriever_are_warned_of(root: Path, tmp_path: Path) -> None:
    index = open_index(root / "index")
    for name in ("bm25", "dense"):
        config: dict[str, JsonValue] = {"retriever": {"retriever": name}}
        means = [[-1.0, -2.0], [-2.0, -1.0]] * 4
        save_signals(tmp_path / name, index.fingerprint, ["fox sea"] * 8, [[1, 2]] * 8, means, config=config)
    once = replace(QUICK, steps=1, held_out=0)
    with pytest.warns(RalmWarning, match="are those of the retriever bm25"):
        train_query_encoder(tmp_path / "bm25", tmp_path / "one", training=once, index=index)
    train_query_encoder(tmp_path / "dense", tmp_path / "two", training=once, index=index)

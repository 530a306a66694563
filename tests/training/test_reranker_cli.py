"""A reranker from signals to a figure, through the command line."""

import contextlib
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from ralm.cli.results import print_reranker
from ralm.retrieval.build import build_index
from ralm.retrieval.index import open_index
from ralm.training.reranker import TrainedReranker
from tests.cli.program import ralm
from tests.fakes import passages_of
from tests.tiny_encoders import save_tiny_bert
from tests.training.made_signals import save_signals

TEXT = "the sea is wide and the hill is high. " * 6
TRAIN = ["train", "reranker", "signals", "--index", "index", "--init", "bert"]
TRAIN += ["--tokens", "12", "--steps", "8"]
SETTINGS = ["--batch", "4", "--learning-rate", "0.01", "--evaluate-every", "3"]
READ = ["--lm", "ralm-tiny", "--index", "index"]
RERANKED = ["--rerank", "predictive:cross_encoder=reranker,candidates=4"]
SHORT = ["--max-length", "64", "--document-tokens", "16", "--stride", "16"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index, signals, an encoder to begin from, a text, and the trained reranker."""
    folder = tmp_path_factory.mktemp("work")
    words = "sea hill wide high the is and deep cold green".split()
    texts = [" ".join(words[(n * k) % 10] for k in range(1, 9)) for n in range(1, 17)]
    build_index(passages_of(*texts), folder / "index")
    draws = np.random.default_rng(0)
    passages = [draws.choice(16, 4, replace=False).tolist() for _ in range(40)]
    gains = [[-1.0 if number % 2 else -3.0 for number in row] for row in passages]
    save_signals(
        folder / "signals", open_index(folder / "index").fingerprint, ["the sea is wide"] * 40, passages, gains
    )
    save_tiny_bert(folder / "bert")
    (folder / "text.txt").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        answer = ralm(*TRAIN, *SETTINGS, "--out", "reranker")
        assert answer.status == 0, answer.err
        assert answer.out.startswith("reranker: reranker of step ")
        assert re.search(r"gain on \d+ held-out examples of \d+ documents, in nats per token:", answer.out)
        assert re.search(r"loss of the held-out examples: \d+\.\d{4} before, \d+\.\d{4} after", answer.out)
    return folder


@pytest.fixture(autouse=True)
def _here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def test_what_counts_beside_its_score_is_told() -> None:
    trained = TrainedReranker(
        out=Path("r"), steps=2, best_step=1, rank_weight=0.4, losses=[{"step": 1, "held_out_loss": None}], held_out=None
    )
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_reranker(trained)
    assert "too few documents were held out to say what was gained" in out.getvalue()
    assert "beside its score, the rank counts 0.40" in out.getvalue()


def test_it_is_used_where_passages_are_read(folder: Path) -> None:
    reranked = ralm("eval", "text.txt", *READ, *SHORT, *RERANKED, "--out", "run", "--json")
    assert reranked.status == 0, reranked.err
    config = json.loads(reranked.out)["config"]["reranker"]
    assert config["reranker"] == "predictive"
    assert config["cross_encoder"]["tokens"] == 12
    assert json.loads((folder / "run" / "summary.json").read_text())["config"]["reranker"] == config
    written = ralm("generate", "the sea", *READ, *RERANKED, "--new-tokens", "6", "--json")
    assert written.status == 0, written.err


EVAL = ["eval", "text.txt", *READ, *SHORT]


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (EVAL, ["--rerank", "predictive:cross_encoder=./gone"], "there is no folder ./gone"),
        (
            EVAL,
            ["--rerank", "predictive:cross_encoder=reranker,tokens=40"],
            "40 tokens of the prefix leave too little room for a passage: rerank",
        ),
        (
            TRAIN,
            ["--out", "reranker"],
            "reranker already exists and is kept; choose another output, or replace it with",
        ),
        (TRAIN, ["--init", "./gone"], "there is no folder ./gone"),
        (TRAIN, ["--index", "signals"], "signals is a ralm signals, not a ralm index"),
    ],
)
def test_what_is_refused(command: list[str], arguments: list[str], message: str, folder: Path) -> None:
    more = SETTINGS if command is TRAIN else []
    new = ["--out", "new"] if "--out" not in arguments else []
    answer = ralm(*command, *more, *new, *arguments)
    assert answer.status > 0
    assert message in answer.err
    assert answer.err.count("\n") == 1
    assert not (folder / "new").exists()
    assert not (folder / "new.unfinished").exists()

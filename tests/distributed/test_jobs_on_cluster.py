"""Models, encoders and answers on a cluster of three nodes: the figures of one machine, whoever is killed meanwhile."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from ralm.cli import process as cli_process
from ralm.distributed import models
from ralm.distributed.models import ClusterModel, ModelLoader
from ralm.distributed.workers import WorkerPool, open_workers
from ralm.errors import ClusterError, UsageError
from ralm.lm.registry import ModelOptions, load_local_model
from ralm.recipes import inputs
from ralm.records import ScoringSequence
from ralm.retrieval.dense.options import VECTORS
from ralm.retrieval.index import open_index
from ralm.retrieval.layout import vectors_file
from tests.cli.program import ralm
from tests.distributed.cluster_work import Differs, EndsAsItLoads, Loads, wait
from tests.distributed.clusters import another_node, node, save_corpus
from tests.documentation import of_packages
from tests.rounding import rounded
from tests.tiny_encoders import save_tiny_bert

pytestmark = [pytest.mark.ray, pytest.mark.slow]
OWN = ModelOptions(dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def found(nodes: Any) -> Iterator[WorkerPool]:
    """Machines that all tests share, since loading torch takes them long."""
    with open_workers(nodes.address) as found:
        yield found


@pytest.fixture
def shared(found: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands use these machines."""
    monkeypatch.setattr(cli_process, "open_machines", lambda *_: found)
    monkeypatch.setattr(models, "open_workers", lambda *_: nullcontext(found))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index, a text and questions."""
    folder = tmp_path_factory.mktemp("jobs")
    sources = save_corpus(folder)
    assert ralm("index", *sources, "--out", folder / "index").status == 0
    texts = sorted((folder / "texts").glob("0*.txt"))
    (folder / "text.txt").write_text("\n".join(one.read_text() for one in texts if one.name != "broken.txt"))
    asked = [{"id": f"q{i}", "question": f"where is w{i}", "answers": [f"in w{i + 1}"]} for i in range(16)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    chosen = [{"question": f"what is w{i}", "choices": ["w1", "w2 w3"], "answer": i % 2} for i in range(8)]
    (folder / "choices.jsonl").write_text("".join(json.dumps(one) + "\n" for one in chosen))
    return folder


def passes(vocabulary: int, count: int = 40) -> list[ScoringSequence]:
    """Passes of random tokens, the longest first."""
    draws = np.random.default_rng(0)
    lengths = sorted(draws.integers(2, 400, count).tolist(), reverse=True)
    return [ScoringSequence(draws.integers(0, vocabulary, length), np.arange(1, length)) for length in lengths]


def same_scores(several: Sequence[Any], others: Sequence[Any]) -> None:
    assert len(several) == len(others)
    for one, other in zip(several, others, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.campaign
@pytest.mark.usefixtures("shared")
def test_a_recipe(nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells are those of one machine, and are read off runs on the cluster."""
    monkeypatch.setattr(inputs, "standard_library_documentation", of_packages)
    run = ["recipe", "run", "analysis/contamination", "--stand-in", "--limit-tokens", 420, "--json"]
    plain = json.loads(answered(*run, "--out", tmp_path / "plain"))
    made = shutil.ignore_patterns("steps", "tables")
    shutil.copytree(tmp_path / "plain", tmp_path / "spread", ignore=made)  # with the stand-ins, which take seconds
    spread = json.loads(answered(*run, "--out", tmp_path / "spread", "--lm-args", f"ray={nodes.address}"))
    values = [[(cell["value"], cell["low"], cell["high"]) for cell in one["cells"]] for one in (plain, spread)]
    assert values[0] == values[1]
    assert all("--lm-args ray=" in cell["command"] for cell in spread["cells"])


@pytest.mark.usefixtures("shared")
def test_eval_and_sweep(nodes: Any, folder: Path) -> None:
    how = [folder / "text.txt", "--lm", "ralm-tiny", "--index", folder / "index", "--stride", 8, "--limit-tokens", 120]
    how += ["--max-length", 256, "--document-tokens", 100, "--rerank", "zero-shot:candidates=4"]
    same_runs(folder, "eval", how, nodes.address, "tokens.parquet")
    swept = [*how, "--over", "stride=8,16"]
    plain, spread = (
        json.loads(answered("eval", *swept, *ray, "--json")) for ray in ([], ["--lm-args", f"ray={nodes.address}"])
    )
    for point in (*plain["points"], *spread["points"]):
        del point["seconds"], point["baseline"]["seconds"]
    assert plain["points"] == rounded(spread["points"])


@pytest.mark.campaign
@pytest.mark.usefixtures("shared")
def test_choices_are_made_and_open_questions_are_refused(nodes: Any, folder: Path) -> None:
    lm = ["--lm", "ralm-tiny", "--index", folder / "index"]
    refused = ralm("qa", folder / "questions.jsonl", *lm, "--lm-args", f"ray={nodes.address}")
    assert (refused.status, refused.out) == (2, "")
    assert "only scores texts on a cluster" in refused.err
    same_runs(folder, "qa", [folder / "choices.jsonl", *lm], nodes.address, "choices.parquet")


@pytest.mark.usefixtures("shared")
def test_signals(nodes: Any, folder: Path) -> None:
    sampled = [folder / "text.txt", "--index", folder / "index", "--lm", "ralm-tiny", "--examples", 12]
    same_runs(folder, "signals", [*sampled, "--candidates", 4], nodes.address, "candidates/00000.parquet")


@pytest.mark.campaign
@pytest.mark.usefixtures("shared")
def test_vectors(nodes: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = save_tiny_bert(folder / "bert")
    for name, ray in (("plain", []), ("clustered", ["--ray", nodes.address])):
        with pytest.MonkeyPatch.context() as patch:
            if ray:  # nothing is left to be encoded here
                patch.setattr("ralm.retrieval.dense.encoder.SentenceEncoder.encode_passages", never)
            said = answered("encode", folder / "index", "--encoder", encoder, "--vectors", name, *ray)
        assert "taken from" not in said
    index = open_index(folder / "index")
    files = [index.path / vectors_file(name, VECTORS) for name in ("plain", "clustered")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_model_that_machines_cannot_load(found: WorkerPool, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"on the machine \S+ of the cluster: .*config\.json"):
        ClusterModel(found, ModelLoader.of(str(tmp_path), OWN))


def test_machines_that_load_different_things(found: WorkerPool) -> None:
    said = r"the model here is not the same on the machines \S+ and \S+ of the cluster.* \(weights \d+ and \d+\)"
    with pytest.raises(ClusterError, match=said):
        list(found.run(Differs(), wait, range(50), describe=str))


@pytest.mark.campaign
def test_scores_are_those_of_one_machine_even_if_one_is_killed_and_one_joins(nodes: Any, found: WorkerPool) -> None:
    own = load_local_model("ralm-tiny", OWN)
    loader = ModelLoader.of("ralm-tiny", OWN)
    assert loader == ModelLoader.of("ralm-tiny", OWN), "equal loaders share what is loaded"
    model = ClusterModel(found, loader)
    assert model.config == own.config
    asked = passes(own.vocabulary)
    expected = [*own.score(asked)]
    same_scores([*model.score(asked)], expected)

    given, other = model.score(asked), model.score(asked[::-1])
    scored, others = [next(given)], [next(other)]
    nodes.remove_node(another_node(nodes), allow_graceful=False)
    scored += [next(given) for _ in range(9)]
    joined = nodes.add_node(**node())
    others += other
    same_scores([*scored, *given], expected)
    same_scores(others, expected[::-1])
    while joined.node_id not in {worker.place[0] for worker in found._workers}:
        same_scores([*model.score(asked)], expected)


def test_a_text_that_ends_its_process_is_an_error_that_names_it(found: WorkerPool) -> None:
    loads: Any = Loads()
    model = ClusterModel(found, loads)
    poisoned = ScoringSequence(np.array([12, 13]), np.array([1]))
    said = "scoring texts of up to 2 tokens with a fake model ends its process, each of 3 times"
    with pytest.raises(ClusterError, match=said):
        list(model.score([poisoned]))


def test_machines_that_end_while_they_load(found: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ralm.distributed.workers.MAX_CRASHES", 1)
    said = (
        "loading a model that is too large ends its process, each of 1 times; the machines may have too little memory"
    )
    with pytest.raises(ClusterError, match=said):
        found.facts(EndsAsItLoads())


def test_a_gpu_has_no_number_on_a_cluster(nodes: Any) -> None:
    with pytest.raises(UsageError, match="on a cluster `device` is one of auto, all, cpu, cuda, map, not 'cuda:1'"):
        open_workers(nodes.address, "cuda:1").__enter__()


def never(*_: object) -> None:
    raise AssertionError("this is done on the cluster")


def same_runs(folder: Path, command: str, arguments: Sequence[object], address: str, table: str) -> None:
    """Run a command on one machine and on the cluster, and compare a table of the two."""
    outs = [folder / f"{command}-{kind}-{Path(table).stem}" for kind in ("plain", "cluster")]
    answered(command, *arguments, "--out", outs[0], "--force")
    answered(command, *arguments, "--out", outs[1], "--force", "--lm-args", f"ray={address}")
    plain, clustered = (pq.read_table(out / table).to_pydict() for out in outs)
    assert len(next(iter(plain.values()))) > 0
    for name, values in plain.items():  # rounding: what prompts share with those before is read once, elsewhere anew
        if values != clustered[name]:
            assert "log_prob" in name or name in ("shares", "probabilities")
            numbers = (np.concatenate(several, axis=None) for several in (values, clustered[name]))
            np.testing.assert_allclose(next(numbers), next(numbers), rtol=1e-5, atol=1e-5)


def answered(*arguments: object) -> str:
    answer = ralm(*arguments)
    assert answer.status == 0, answer.err
    return answer.out

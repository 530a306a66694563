"""REPLUG's published evaluation, case by case and reading by reading: every token has the log-probability it gives."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from ralm.lm.registry import load_language_model
from ralm.lm.scoring import Scorer
from ralm.protocols import Reader
from ralm.reading.parts import Parts
from ralm.reading.plan import PlanOptions
from ralm.reading.readers import Concatenation, Ensemble, InContext
from ralm.reading.score import score_text
from ralm.reading.sources import FromFile
from ralm.reading.tokens import prepare_text
from ralm.records import ScoredTokens
from ralm.retrieval.retrieval_file import read_retrieval_file
from tests.shared_data import SHARED, shared

FOLDER = ("golden", "replug_official")


def readings() -> list[Any]:
    """Every case with every reading of it, all but the shortest for `make test-all`; one skips without data."""
    path = SHARED.joinpath(*FOLDER, "settings.json")
    if not path.exists():
        return [("none", "none")]
    return [
        pytest.param(case, name, marks=() if case == "tiny.short" else pytest.mark.campaign)
        for case, of_case in json.loads(path.read_text()).items()
        for name in sorted(of_case["readings"])
    ]


def plan_of(asked: dict[str, str], reading: dict[str, Any], cut_together: bool) -> PlanOptions:
    """The plan that the settings ask for; they do not know of cutting together."""
    cut = reading["official"]["retrieved_max_length"] if cut_together else int(asked["--document-tokens"])
    return PlanOptions(
        semantics="official",
        windows="rolling",
        stride=int(asked["--stride"]),
        query_tokens=int(asked["--query-tokens"]),
        document_tokens=cut,
        max_length=int(asked["--max-length"]),
    )


def reader_of(asked: dict[str, str], cut_together: bool) -> Reader:
    match asked.get("--reader"):
        case "ensemble":
            return Ensemble(documents=int(asked["--documents"]))
        case "concatenation":
            return Concatenation(documents=int(asked["--documents"]), cut_together=cut_together)
        case _:
            return InContext()


@pytest.fixture(scope="module")
def model() -> Scorer:
    """What one ensemble reads, a smaller one reads again."""
    return Scorer(load_language_model("ralm-tiny"))


@pytest.mark.parametrize(("case", "name"), readings())
def test_every_log_probability(model: Scorer, case: str, name: str) -> None:
    folder = shared(*FOLDER)
    settings = json.loads((folder / "settings.json").read_text())[case]
    reading = settings["readings"][name]
    expected = json.loads((folder / settings["expected"]).read_text())[name]
    asked = dict(zip(reading["ralm"][::2], reading["ralm"][1::2], strict=True))
    cut_together = name.endswith("_cut")
    prepared = prepare_text(
        (folder / settings["text"]).read_text(), model.model.tokenizer, plan_of(asked, reading, cut_together)
    )
    reader = reader_of(asked, cut_together)
    if reading["retrieved"] is None:
        scored: ScoredTokens = score_text(prepared, model)
    else:
        source = FromFile(read_retrieval_file(folder / reading["retrieved"]), config={})
        hits, passages = source.find(prepared, model.tokenizer, reader.hits)
        scored = score_text(prepared, model, hits, passages, Parts(reader=reader))
    assert len(scored) == prepared.plan.counted_tokens == expected["targets"]
    assert scored.nll == pytest.approx(expected["nll"], rel=1e-6)
    rounding = 1e-4 if torch.cuda.is_available() else 1e-5
    np.testing.assert_allclose(scored.log_probs_T, expected["log_probs"], rtol=1e-5, atol=rounding)

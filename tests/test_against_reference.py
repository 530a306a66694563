"""Plan, reading and engine together against the plain loops of tests/reference, for every family, and the golden run.

Texts shorter than the window, exactly the window, and not a multiple of the stride; documents longer than the cut, and
empty; strides for which nothing was found.
"""

import json
import os
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedModel

from ralm.lm.local.model import LocalLanguageModel, load_transformers_model
from ralm.reading.parts import Parts
from ralm.reading.plan import PlanOptions, Semantics
from ralm.reading.score import score_text
from ralm.reading.sources import FromFile
from ralm.reading.tokens import PassageDocuments, PreparedText, prepare_text
from ralm.records import NO_PASSAGE, Hits, IntArray, Passages, ScoredTokens
from ralm.reranking.oracle import Oracle
from ralm.reranking.zero_shot import ZeroShot
from ralm.retrieval.retrieval_file import read_retrieval_file
from tests.fakes import chosen_hits, passages_of
from tests.reference import official, paper
from tests.shared_data import shared

WINDOW = 32
TEXT = "How a passage is read decides what it is worth; so every token counts, and none twice."
PASSAGES = passages_of("a passage that is much longer than the cut of ten tokens", "short", "", "token counts")


def options(semantics: Semantics, **changed: object) -> PlanOptions:
    values = {"semantics": semantics, "stride": 4, "query_tokens": 8, "document_tokens": 10, "max_length": WINDOW}
    return PlanOptions(**(values | changed))  # type: ignore[arg-type]


def chosen_for(prepared: PreparedText) -> IntArray:
    """Some passage for every row that retrieves, none for every fifth."""
    rows = np.arange(len(prepared.plan))
    chosen_R = np.where(rows % 5 == 4, NO_PASSAGE, rows % len(PASSAGES))
    return np.where(prepared.plan.retrieves_R, chosen_R, NO_PASSAGE).astype(np.int64)


def on_processor(model: LocalLanguageModel) -> PreTrainedModel:
    """What the plain loops read, which know of no GPU."""
    return model.model if model.model.device.type == "cpu" else deepcopy(model.model).cpu()


@pytest.mark.parametrize("tokens", [2, 13, WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + 4, 83])
def test_official(model: LocalLanguageModel, tokens: int) -> None:
    prepared = prepare_text(TEXT, model.tokenizer, options("official"), limit_tokens=tokens)
    chosen_R = chosen_for(prepared)
    documents = PassageDocuments(PASSAGES, model.tokenizer, 10)
    scored = score_text(prepared, model, chosen_hits(chosen_R), PASSAGES)
    candidates = [[documents[int(number)].tolist()] if number != NO_PASSAGE else [] for number in chosen_R]
    windows = official.evaluate(on_processor(model), prepared.tokens.tolist(), candidates, stride=4, max_length=WINDOW)
    expected = np.concatenate([window.target_log_probs for window in windows])
    np.testing.assert_allclose(scored.log_probs_T, expected, rtol=1e-4, atol=1e-5)
    assert scored.nll == pytest.approx(sum(window.nll for window in windows), rel=1e-5)


@pytest.mark.parametrize("block", [None, 8, 12])
@pytest.mark.parametrize("tokens", [2, 13, WINDOW, WINDOW + 1, 83])
def test_paper(model: LocalLanguageModel, tokens: int, block: int | None) -> None:
    blocked = {} if block is None else {"windows": "blocked", "block": block}
    prepared = prepare_text(TEXT, model.tokenizer, options("paper", **blocked), limit_tokens=tokens)
    chosen_R = chosen_for(prepared)
    documents = PassageDocuments(PASSAGES, model.tokenizer, 10)
    scored = score_text(prepared, model, chosen_hits(chosen_R), PASSAGES)
    expected = paper.log_probs(
        on_processor(model),
        prepared.tokens.tolist(),
        [documents[int(number)].tolist() for number in chosen_R],
        stride=4,
        max_length=WINDOW,
        block=block,
        first=model.tokenizer.encode_document("", 10).tolist(),
    )
    np.testing.assert_allclose(scored.log_probs_T, expected, rtol=1e-4, atol=1e-5)


def test_a_bos_stands_in_front_of_documents_alone(tiny_folders: dict[str, Path]) -> None:
    opt = load_transformers_model(str(tiny_folders["opt"])).tokenizer
    gpt2 = load_transformers_model(str(tiny_folders["gpt2"])).tokenizer
    assert opt.encode_document("abc", 10).tolist() == [256, *opt.encode("abc").tolist()]
    assert opt.encode_document("abc", 3).tolist() == [256, *opt.encode("ab").tolist()], "the cap counts the BOS"
    assert gpt2.encode_document("abc", 10).tolist() == gpt2.encode("abc").tolist()


RERANKED_TOKENS = None if os.environ.get("RALM_GOLDEN") == "all" else 288
"""Of the golden text; 16 passages are read for each of its strides."""


class Golden:
    """The official evaluation of one text with a small GPT-2, and ours; of its first `tokens` only, if given."""

    def __init__(self, tokens: int | None = None) -> None:
        folder = shared("golden", "official")
        self.expected = json.loads((folder / "expected.json").read_text())
        self.model = load_transformers_model(str(folder / "gpt2"))
        self.folder = folder
        plan = PlanOptions(semantics="official", document_tokens=64, max_length=256)
        text = (folder / "text_docs.txt").read_text()
        self.prepared = prepare_text(text, self.model.tokenizer, plan, limit_tokens=tokens)
        self.is_whole = tokens is None

    def candidates(self, k: int) -> tuple[IntArray, Passages]:
        strides = read_retrieval_file(self.folder / "retrieved.json")[: len(self.prepared.plan)]
        hits, passages = FromFile(strides, config={}).find(self.prepared, self.model.tokenizer, k)
        return hits.numbers_QK, passages

    def check(self, scored: ScoredTokens, name: str) -> None:
        expected = self.expected[f"gpt2.docs.{name}"]
        plan = self.prepared.plan
        targets = plan.target_begin_R - 1, plan.end_R - 1
        nll_R = [-scored.log_probs_T[begin:end].sum(dtype=np.float64) for begin, end in zip(*targets, strict=True)]
        np.testing.assert_allclose(nll_R, expected["per_stride_nll"][: len(nll_R)], rtol=1e-4)
        if not self.is_whole:
            return
        assert len(scored) == expected["targets"]
        assert scored.nll == pytest.approx(expected["nll"], rel=1e-5)
        perplexity = np.exp(scored.nll / plan.counted_tokens)
        assert perplexity == pytest.approx(expected["token_perplexity"], rel=1e-4)

    def check_chosen(self, scored: ScoredTokens, name: str, numbers_QK: IntArray) -> None:
        """The chosen passage of every window but the first, which is read without."""
        places = self.expected[f"gpt2.docs.{name}"]["chosen"][1 : len(numbers_QK)]
        expected = numbers_QK[np.arange(1, len(numbers_QK)), places]
        found = scored.passages_T[self.prepared.plan.target_begin_R[1:] - 1]
        np.testing.assert_array_equal(found, expected)


@pytest.fixture(scope="module")
def golden() -> Golden:
    return Golden()


def test_golden_without_retrieval(golden: Golden) -> None:
    golden.check(score_text(golden.prepared, golden.model), "none")


def test_golden_with_the_top_passage(golden: Golden) -> None:
    numbers_QK, passages = golden.candidates(1)
    golden.check(score_text(golden.prepared, golden.model, chosen_hits(numbers_QK[:, 0]), passages), "first")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("method", "name"), [("zero-shot", "logprob"), ("oracle", "oracle")])
def test_golden_reranking(method: str, name: str) -> None:
    golden = Golden(RERANKED_TOKENS)
    numbers_QK, passages = golden.candidates(16)
    hits = Hits(numbers_QK=numbers_QK, scores_QK=np.zeros(numbers_QK.shape, dtype=np.float32))
    reranker = ZeroShot() if method == "zero-shot" else Oracle()
    scored = score_text(golden.prepared, golden.model, hits, passages, Parts(reranker=reranker))
    golden.check(scored, name)
    golden.check_chosen(scored, name, numbers_QK)

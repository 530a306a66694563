"""Every causal family of transformers, through scoring and generation, against plain full reads."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from pydantic import JsonValue
from transformers import PreTrainedModel

from ralm.errors import ModelError
from ralm.lm.local import engine
from ralm.lm.local.decoder import CachedDecoder, LocalDecoder, StateDecoder, UncachedDecoder
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.local.tokenization import ModelTokenizer
from ralm.lm.scoring import Scorer
from ralm.reading.generate import TokenWriter
from ralm.reading.parts import Parts
from ralm.reading.readers import Ensemble
from ralm.reading.sampling import GenerationOptions
from ralm.reading.sources import FromRetriever
from ralm.records import Hits, Request
from tests.campaign import sampled
from tests.every_family import FAMILIES, FROM_STATE, LOOK_AHEAD, READ_WHOLE, SAMPLE, tiny_family_model
from tests.fakes import passages_of
from tests.reading.loops import plain_generation, written
from tests.tiny_models import byte_tokenizer

PASSAGES = passages_of("tea", "a boat", "rivers run")
PROMPTS = ("What is it worth", "Passage")
OPTIONS = GenerationOptions(new_tokens=5, stride=2, query_tokens=3, document_tokens=8)

OLDER = Version(transformers.__version__) < Version("5.24")
"""Earlier versions cannot continue from some states that they return."""


class TurningHits:
    """Two of the passages, others and in another order as the query changes."""

    config: dict[str, JsonValue] = {"retriever": "turning hits"}  # noqa: RUF012

    def retrieve(self, queries: Sequence[str], k: int) -> Hits:
        states = [sum(map(ord, query)) for query in queries]
        numbers_QK = np.array([[(state + column) % 3 for column in range(k)] for state in states], dtype=np.int64)
        scores_QK = np.array([[np.sin(state), -1.0][:k] for state in states], dtype=np.float32)
        return Hits(numbers_QK=numbers_QK, scores_QK=scores_QK)


def language_model(family: str, **settings: object) -> LocalLanguageModel:
    tokenizer = ModelTokenizer(byte_tokenizer(with_bos=False))
    return LocalLanguageModel(family, tiny_family_model(family, **settings), tokenizer)


@pytest.mark.parametrize("family", sampled([family for family in FAMILIES if family not in LOOK_AHEAD], *SAMPLE))
def test_scores_and_writes_as_a_plain_loop_does(family: str) -> None:
    model = language_model(family)
    check_scores(model)
    check_writing(model)
    found = type(model.continuations())
    assert found is expected_decoder(family) or (OLDER and found is UncachedDecoder)


def expected_decoder(family: str) -> type[LocalDecoder]:
    kinds = {FROM_STATE: StateDecoder, READ_WHOLE: UncachedDecoder}
    return next((kind for families, kind in kinds.items() if family in families), CachedDecoder)


@pytest.mark.parametrize("family", sampled(sorted(LOOK_AHEAD), "bert", "xlnet"))
def test_models_that_look_ahead_are_refused(family: str) -> None:
    with pytest.raises(ModelError, match=rf"{family} (looks at later tokens|does not predict|cannot read a text)"):
        language_model(family)


def test_a_bert_that_is_a_decoder() -> None:
    model = language_model("bert", is_decoder=True)
    check_scores(model)
    check_writing(model)


def check_scores(model: LocalLanguageModel, plain: PreTrainedModel | None = None) -> None:
    """Scores of a model equal those of its transformers model, or of a copy of it on the processor."""
    read_plainly = plain or model.model
    draw = np.random.default_rng(0)
    texts = [draw.integers(32, 127, size=size) for size in (9, 26, 17)]
    requests = [Request(document=text[:2], context=text[2:-3], targets=text[-3:]) for text in texts]
    scored = Scorer(model).log_probs(requests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "LOGITS_PER_BATCH", dict.fromkeys(engine.LOGITS_PER_BATCH, 2 * model.vocabulary))
        patch.setattr(model, "_engine", engine.Engine([engine.Replica(model.logits)]))
        for whole, in_parts in zip(scored, Scorer(model).log_probs(requests), strict=True):
            np.testing.assert_allclose(in_parts, whole, rtol=1e-5, atol=1e-5)
    for text, found in zip(texts, scored, strict=True):
        with torch.no_grad():
            logits_NV = read_plainly(input_ids=torch.from_numpy(text)[None], use_cache=False).logits[0]
        expected = logits_NV.float().log_softmax(-1)[np.arange(-4, -1), text[-3:]].numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def check_writing(model: LocalLanguageModel, plain: PreTrainedModel | None = None) -> None:
    """Greedy, two documents that change at every stride, two prompts at once."""
    read_plainly = plain or model.model
    prompts = [model.tokenizer.encode(text) for text in PROMPTS]
    source, parts = FromRetriever(TurningHits(), PASSAGES, config={}), Parts(reader=Ensemble(documents=2))

    def probabilities(read: Sequence[int]) -> np.ndarray:
        with torch.no_grad():
            logits_V = read_plainly(input_ids=torch.tensor([list(read)]), use_cache=False).logits[0, -1]
        return np.asarray(logits_V.double().softmax(-1).numpy())

    for prompt, found in zip(prompts, written(TokenWriter(model, OPTIONS, source, parts=parts), *prompts), strict=True):
        expected = plain_generation(
            prompt, model, OPTIONS, source, parts, probabilities, lambda average: int(average.argmax())
        )
        assert [one.token for one in found] == [step.token for step in expected]
        log_probs = [np.log(step.probability) for step in expected]
        np.testing.assert_allclose([one.log_prob for one in found], log_probs, rtol=1e-3, atol=1e-4)

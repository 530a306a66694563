"""Chat templates in lm-evaluation-harness: the same text as its `hf`, and one sentence where there is none."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from lm_eval.models.huggingface import HFLM
from transformers import AutoTokenizer

from ralm.errors import ModelError
from ralm.harness.model import RalmLM
from tests.harness.local_tasks import assert_alike, evaluated, of
from tests.tiny_models import save_tiny_model

pytestmark = pytest.mark.filterwarnings("ignore")

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
WITHOUT_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TEMPLATE
MESSAGES = [{"role": "user", "content": "who?"}, {"role": "assistant", "content": "a dog"}]
SYSTEM = [{"role": "system", "content": "be brief"}, *MESSAGES]


def chatting(folder: Path, template: Any) -> Path:
    save_tiny_model("llama", folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("template", [TEMPLATE, WITHOUT_SYSTEM])
def test_messages_become_the_same_text_as_in_hf(tmp_path: Path, template: str) -> None:
    folder = chatting(tmp_path / "model", template)
    ours = of(folder)
    theirs = HFLM(pretrained=str(folder), device="cpu", batch_size=1)
    for messages, begins in product([MESSAGES, SYSTEM], [True, False]):
        assert ours.apply_chat_template(messages, begins) == theirs.apply_chat_template(messages, begins)
    assert ours.chat_template(True) == theirs.chat_template(True) == template
    assert ours.chat_template(False) is None


def test_a_task_is_answered_as_by_hf(tmp_path: Path, tasks: Path) -> None:
    folder = chatting(tmp_path / "model", TEMPLATE)
    ours, theirs = (
        evaluated(
            model,
            tasks,
            ("choosing", "ending"),
            model_args=arguments,
            num_fewshot=1,
            apply_chat_template=True,
            system_instruction="Answer.",
            device="cpu",
        )
        for model, arguments in (
            ("ralm", f"lm={folder},max_length=64"),
            ("hf", f"pretrained={folder},max_length=64"),
        )
    )
    assert "[assistant]" in ours["samples"]["local_choosing"][0]["arguments"][0][0]
    assert_alike(ours, theirs, ("choosing", "ending"))


def test_a_template_is_chosen_by_its_name(tmp_path: Path) -> None:
    ours = RalmLM.create_from_arg_obj(
        {"lm": str(chatting(tmp_path, {"default": TEMPLATE, "short": "{{ bos_token }}"}))}
    )
    assert ours.apply_chat_template(MESSAGES).count("[") == 3
    assert ours.chat_template("short") == "{{ bos_token }}"
    assert ours.apply_chat_template(MESSAGES) == "<s>"
    with pytest.raises(ModelError, match="^the tokenizer has no chat template 'long'; it has default, short"):
        ours.chat_template("long")


def test_a_tokenizer_without_a_template_is_one_sentence(tiny_folders: dict[str, Path]) -> None:
    ours = of(tiny_folders["gpt2"])
    with pytest.raises(ModelError, match="has no chat template"):
        ours.apply_chat_template(MESSAGES)
    with pytest.raises(ModelError, match="has no chat template"):
        ours.chat_template(True)


def test_tokenizers_have_names_of_their_own(tmp_path: Path, tiny_folders: dict[str, Path]) -> None:
    """The harness keeps templated requests by the name of the tokenizer."""
    names = {
        of(folder).tokenizer_name
        for folder in (tiny_folders["gpt2"], tiny_folders["llama"], chatting(tmp_path, TEMPLATE))
    }
    assert len(names) == 3
    assert not any("/" in name for name in names)

"""A tiny random model whose tokenizer has a chat template."""

from pathlib import Path
from typing import Final

import torch

from ralm.records import Message
from tests.tiny_models import byte_tokenizer, random_model, tiny_config

TEMPLATE: Final = (
    "<s>{% if messages[0]['role'] == 'system' %}({{ messages[0]['content'] | trim }}){% set messages = messages[1:] %}"
    "{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ message['role'] }}: {{ message['content'] }}</s>\n"
    "{% endfor %}{% if add_generation_prompt %}model: {% endif %}"
)
"""First a system message, then the user and the assistant in turns."""
POSITIONS: Final = 512


def save_chat_model(folder: Path, template: str | None = TEMPLATE) -> Path:
    """A model of bytes that reads 512 tokens, as a folder that `from_pretrained` loads."""
    torch.manual_seed(0)
    config = tiny_config("llama")
    config.max_position_embeddings = POSITIONS
    random_model(config).save_pretrained(folder)
    tokenizer = byte_tokenizer(with_bos=True)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def chat(*contents: str, system: str | None = None) -> list[Message]:
    """Messages of the user and the assistant in turns, after one of the system."""
    said = [Message("assistant" if place % 2 else "user", content) for place, content in enumerate(contents)]
    return [*([] if system is None else [Message("system", system)]), *said]

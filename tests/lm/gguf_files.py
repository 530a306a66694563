"""Writes tiny models as GGUF files, with the package gguf, in the layout of llama.cpp's converter."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import quantize
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import Gemma3TextConfig, LlamaConfig, PretrainedConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from tests.tiny_models import random_model

TEXT = (
    "The sea is deep and blue, isn't it? Ships cross it in 1984 and 20 more years; they SING sOmEtimes.\n\n  Dogs\tbark"
)
SPECIAL = ["<|end|>", "<|im_start|>"]
TYPES = dict.fromkeys(SPECIAL, gguf.TokenType.CONTROL) | {"<tool>": gguf.TokenType.USER_DEFINED}
LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_SIZES = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": None, "eos_token_id": 0,
    "pad_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
_THETA = {"rope_theta": 500_000.0}
CONFIGS: dict[str, tuple[type[PretrainedConfig], dict[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "llama tied wide": (LlamaConfig, {"tie_word_embeddings": True, "head_dim": 32}),
    "llama biased": (LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "llama 3": (
        LlamaConfig,
        {"rope_parameters": {**_THETA, **LLAMA_3, "original_max_position_embeddings": 8192}, "rms_norm_eps": 1e-5},
    ),
    "llama linear": (LlamaConfig, {"rope_parameters": {**_THETA, "rope_type": "linear", "factor": 2.0}}),
    "qwen2": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, {"head_dim": 32}),
    "gemma3": (
        Gemma3TextConfig,
        {"num_hidden_layers": 7, "sliding_window": 8, "head_dim": 32, "query_pre_attn_scalar": 32,
         "tie_word_embeddings": True, "final_logit_softcapping": 30.0},
    ),
}  # fmt: skip


def tiny_model(kind: str) -> PreTrainedModel:
    """A random model in which no norm is 1 and no bias 0."""
    made, own = CONFIGS[kind]
    torch.manual_seed(0)
    model = random_model(made(**{**_SIZES, **own})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def write_model(
    path: Path,
    model: PreTrainedModel,
    tokens: Mapping[str, Any],
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    settings: Mapping[str, Any] | None = None,
    without: str = "",
    more: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Write a model and the settings of its tokenizer; `settings` beside those of the model, without the tensors whose
    names contain `without`, with `more`. Matrices are of the type `kind`."""
    config = model.config
    architecture = config.model_type.removesuffix("_text")
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (model_settings(config, architecture) | dict(tokens) | dict(settings or {})).items():
        is_whole = key.startswith(("general.", "quantize.", "tokenizer.", "split."))
        _add(writer, key if is_whole else f"{architecture}.{key}", value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    for key, weights in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if without and without in name:
            continue
        array = _stored(key, weights, config, architecture).contiguous().numpy()
        if array.ndim == 1:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, quantize(array, kind), raw_dtype=kind)
    for name, array in (rope_tensors(config) | dict(more or {})).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _stored(key: str, weights: torch.Tensor, config: PretrainedConfig, architecture: str) -> torch.Tensor:
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    part = key.split(".")[-2]
    if architecture == "llama" and part in heads:
        return weights.view(heads[part], 2, -1, *weights.shape[1:]).transpose(1, 2).reshape_as(weights)
    return weights + 1 if architecture == "gemma3" and key.endswith("norm.weight") else weights


def model_settings(config: PretrainedConfig, architecture: str) -> dict[str, Any]:
    """The settings that llama.cpp's converter writes for a configuration."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    found: dict[str, Any] = {
        "general.type": "model",
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }
    if architecture == "gemma3":
        found |= {"attention.sliding_window": config.sliding_window, "final_logit_softcapping": 30.0}
        rope = rope["full_attention"]
    if rope["rope_type"] == "linear":
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope["factor"]}
    return {**found, "rope.freq_base": float(rope["rope_theta"])}


def rope_tensors(config: PretrainedConfig) -> dict[str, np.ndarray]:
    """The tensors that scale rotary frequencies: what transformers divides them by."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = config.rope_parameters
    if rope.get("rope_type") != "llama3":
        return {}
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = rope["rope_theta"] ** -(torch.arange(len(scaled)) / len(scaled))
    return {"rope_freqs.weight": (plain / scaled).numpy()}


def trained_bpe(size: int = 290) -> tuple[list[str], list[str]]:
    """The tokens and merges of a byte-level BPE of `TEXT`."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    backend.train_from_iterator([TEXT * 3], trainer)
    found = json.loads(backend.to_str())["model"]
    tokens = sorted(found["vocab"], key=found["vocab"].__getitem__)
    return tokens, [" ".join(pair) for pair in found["merges"]]


def bpe_tokens(pre: str = "smollm", **more: Any) -> dict[str, Any]:
    """The settings of a tokenizer with byte-level BPE of 300 tokens: two control tokens, one of the user's."""
    tokens, merges = trained_bpe()
    tokens += ["<tool>", *(f"[PAD{number}]" for number in range(len(tokens) + 1, 300))]
    kinds = [TYPES.get(token, gguf.TokenType.UNUSED if "[PAD" in token else gguf.TokenType.NORMAL) for token in tokens]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(one) for one in kinds],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": 0,
        **{f"tokenizer.{key}": value for key, value in more.items()},
    }

"""A GGUF file, which llama.cpp reads, from the folder of a small model; in float32, so that figures can be compared.

llama.cpp's own converter refuses models whose tokenizer it does not know, ralm-tiny among them. This one takes any
byte-level BPE, and two families: LLaMA, and GPT-NeoX as ralm-tiny is. Knows nothing of servers.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

from ralm.errors import ModelError

NEVER_MERGED = "ÿ ÿ"
"""A merge of two bytes that no text has, for a vocabulary of bytes alone: llama.cpp refuses an empty list."""

Named: TypeAlias = Iterator[tuple[str, Tensor]]


def write_gguf(folder: Path, file: Path) -> None:
    """Write the model in `folder` to `file`; raises ModelError if llama.cpp has no such architecture or tokenizer.

    llama.cpp knows a fixed list of ways in which text is split before BPE. The file names the nearest one, so the
    server may split a text otherwise than the tokenizer in `folder`; token ids as prompts are read alike.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = model.config
    architecture = _architecture(config)
    part = file.with_name(file.name + ".part")
    writer = gguf.GGUFWriter(part, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_name(folder.name)
    _add_settings(writer, config)
    _add_vocabulary(writer, folder, config.vocab_size)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, weights in _weights(config, model.state_dict()):
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), weights.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(file)


def _architecture(config: PretrainedConfig) -> Any:
    """llama.cpp's name for the architecture.

    Its GPT-NeoX has GELU and nothing else. With squared ReLU and without parallel residuals, a GPT-NeoX is what it
    calls Nemotron: layer norms with bias, biases everywhere, rotary positions in a part of each head.
    """
    plain = getattr(config, "rope_parameters", {}).get("rope_type") == "default"
    match config.model_type:
        case "llama" if plain:
            return gguf.MODEL_ARCH.LLAMA
        case "gpt_neox" if plain and config.hidden_act == "relu2" and not config.use_parallel_residual:
            return gguf.MODEL_ARCH.NEMOTRON
    raise ModelError(
        f"{config.name_or_path} ({config.model_type}) cannot be written as GGUF here. Take a LLaMA, or a GPT-NeoX with "
        "squared ReLU and without parallel residuals; neither with scaled rotary positions."
    )


def _add_settings(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    """Sizes, epsilon and rotary positions."""
    rope = config.rope_parameters
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", config.num_attention_heads))
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head * rope.get("partial_rotary_factor", 1.0)))
    if config.model_type == "llama":
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_eps(config.layer_norm_eps)


def _add_vocabulary(writer: gguf.GGUFWriter, folder: Path, size: int) -> None:
    """Tokens, their kinds and merges; ids without a token are marked as unused."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    if parts["model"]["type"] != "BPE" or "ByteLevel" not in json.dumps(parts["pre_tokenizer"]):
        raise ModelError(f"the tokenizer in {folder} is no byte-level BPE; no other can be written as GGUF here.")
    tokens = {number: token for token, number in tokenizer.get_vocab().items()}
    kinds = dict.fromkeys(tokens, gguf.TokenType.NORMAL)
    for added in parts["added_tokens"]:
        kinds[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_splitting(parts["pre_tokenizer"]))
    writer.add_token_list([tokens.get(number, f"[unused {number}]") for number in range(size)])
    writer.add_token_types([kinds.get(number, gguf.TokenType.UNUSED) for number in range(size)])
    merges = [one if isinstance(one, str) else " ".join(one) for one in parts["model"]["merges"]]
    writer.add_token_merges(merges or [NEVER_MERGED])
    _add_special_tokens(writer, tokenizer)


def _splitting(pre_tokenizer: Any) -> str:
    """llama.cpp's name of how text is split: GPT-2's way, or the same with single digits, which is near to most."""
    alone = pre_tokenizer["type"] == "ByteLevel" and pre_tokenizer["use_regex"]
    return "gpt-2" if alone else "starcoder"


def _add_special_tokens(writer: gguf.GGUFWriter, tokenizer: Any) -> None:
    """The tokens at the beginning and the end of a text, and whether a text gets them by itself."""
    around = tokenizer("").input_ids
    if tokenizer.bos_token_id is not None:
        writer.add_bos_token_id(tokenizer.bos_token_id)
    if tokenizer.eos_token_id is not None:
        writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(tokenizer.bos_token_id in around[:1])
    writer.add_add_eos_token(tokenizer.eos_token_id in around[1:])


def _weights(config: PretrainedConfig, state: dict[str, Tensor]) -> Named:
    """The weights as llama.cpp wants them, under names that gguf's table of names knows."""
    for name, weights in state.items():
        if ".attention.query_key_value." in name:
            yield from _queries_keys_values(name, weights, config.num_attention_heads)
        elif config.model_type == "llama" and ".q_proj." in name:
            yield name, _interleaved(weights, config.num_attention_heads)
        elif config.model_type == "llama" and ".k_proj." in name:
            yield name, _interleaved(weights, config.num_key_value_heads)
        else:
            yield name, weights


def _queries_keys_values(name: str, weights: Tensor, heads: int) -> Named:
    """The three parts of GPT-NeoX's joint projection, in which they alternate by heads."""
    parts = weights.view(heads, 3, -1, *weights.shape[1:])
    for place, letter in enumerate("qkv"):
        yield (
            name.replace("gpt_neox", "model").replace("attention.query_key_value", f"self_attn.{letter}_proj"),
            parts[:, place].flatten(0, 1),
        )


def _interleaved(weights: Tensor, heads: int) -> Tensor:
    """Rows of a LLaMA's projection in llama.cpp's order: it turns neighbours, transformers the halves of a head."""
    return weights.view(heads, 2, -1, *weights.shape[1:]).transpose(1, 2).reshape_as(weights)

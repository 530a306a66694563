"""Write ralm-tiny as a GGUF file in float32: `python -m tools.real_servers.gguf_file FILE`.

llama.cpp's own converter rejects ralm-tiny's tokenizer. llama.cpp's GPT-NeoX has GELU and nothing else; with squared
ReLU and without parallel residuals, a GPT-NeoX is what it calls Nemotron: layer norms with bias, biases everywhere,
rotary positions in a part of each head.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

from ralm.lm import TINY, model_path


def write_gguf(file: Path) -> None:
    """Write the file.

    llama.cpp knows a fixed list of ways in which text is split before BPE. The file names the nearest one, so the
    server may split a text otherwise than ralm-tiny; token ids as prompts are read alike.
    """
    model = AutoModelForCausalLM.from_pretrained(model_path(TINY), dtype=torch.float32)
    architecture = gguf.MODEL_ARCH.NEMOTRON
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_name(TINY)
    _add_settings(writer, model.config)
    _add_vocabulary(writer, model.config.vocab_size)
    names = gguf.get_tensor_name_map(architecture, model.config.num_hidden_layers)
    for name, weights in _weights(model.config, model.state_dict()):
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), weights.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_settings(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    """Add sizes, epsilon and rotary positions."""
    rope = config.rope_parameters
    head = config.hidden_size // config.num_attention_heads
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_attention_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head * rope["partial_rotary_factor"]))
    writer.add_layer_norm_eps(config.layer_norm_eps)


def _add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """Add tokens, their kinds and merges; ids without a token are marked as unused."""
    tokenizer = AutoTokenizer.from_pretrained(model_path(TINY))
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    tokens = {number: token for token, number in tokenizer.get_vocab().items()}
    kinds = dict.fromkeys(tokens, gguf.TokenType.NORMAL)
    kinds |= {added["id"]: gguf.TokenType.CONTROL for added in parts["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("starcoder")  # GPT-2's way with single digits
    writer.add_token_list([tokens.get(number, f"[unused {number}]") for number in range(size)])
    writer.add_token_types([kinds.get(number, gguf.TokenType.UNUSED) for number in range(size)])
    writer.add_token_merges([" ".join(pair) for pair in parts["model"]["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)


def _weights(config: PretrainedConfig, state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights under names that gguf's table of names knows; heads alternate in the joint projection."""
    for name, weights in state.items():
        if ".attention.query_key_value." not in name:
            yield name, weights
            continue
        parts = weights.view(config.num_attention_heads, 3, -1, *weights.shape[1:])
        for place, letter in enumerate("qkv"):
            of_letter = name.replace("gpt_neox", "model")
            of_letter = of_letter.replace("attention.query_key_value", f"self_attn.{letter}_proj")
            yield of_letter, parts[:, place].flatten(0, 1)


if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]))

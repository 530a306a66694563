"""A tiny random model of every family that transformers knows as causal, made in this process.

One set of sizes serves most families: each configuration takes those that it has a name for. Some need settings of
their own. A family that is new to transformers is tried like all the others.
"""

import dataclasses
import inspect
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.tiny_models import BOS, EOS, PAD, POSITIONS, VOCABULARY

NOT_BUILT = frozenset(
    "dots3_note gemma4_assistant gemma4_unified_assistant gemma3n musicgen musicgen_melody blt fuyu got_ocr2 git "
    "gemma3 gemma4 gemma4_unified emu3 llama4 mllama moss_transcribe_diarize phi4_multimodal qwen3_5 qwen3_5_moe "
    "qwen4_exp".split()
)
"""Families that a few small numbers do not make: models that see or hear, with fixed sizes of their eye or ear, whose
text models are families of their own; drafts for another model, whose states they need; several books of codes; bytes
in patches that a second model cuts."""

LOOK_AHEAD = frozenset(
    "bert bert-generation big_bird camembert cpmant data2vec-text electra ernie megatron-bert prophetnet rembert "
    "roberta roberta-prelayernorm roc_bert roformer xlm xlm-roberta xlm-roberta-xl xlnet xmod".split()
)
"""Families that attend to later tokens as they come."""

FROM_STATE = frozenset(
    "axk2 bailing_hybrid bamba bart bigbird_pegasus blenderbot blenderbot-small deepseek_v32 deepseek_v4 "
    "dots3_note_text falcon_h1 falcon_mamba glm_moe_dsa granitemoehybrid hy_v4 inkling2_loop_text inkling2_text "
    "inkling_text jamba kimi_linear lara_mini lfm2 lfm2_moe lfm3 mamba mamba2 marian mbart minimax mvp nemotron_h "
    "olmo_hybrid pegasus plbart qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp_text reformer rwkv trocr whisper "
    "xlstm zamba zaya".split()
)
"""Families that cannot continue from rows of keys and values, but from the state that they return: state spaces and
linear attention, indexed or compressed keys (DeepSeek V3.2 and V4), or positions that are counted by columns, padding
included (BART and its kin)."""

READ_WHOLE = frozenset({"openai-gpt", "recurrent_gemma", "zamba2"})
"""Families that return no state (OpenAI GPT), hold it in their modules (RecurrentGemma), or whose figures change when
they continue from it (Zamba2, which limits the size of its steps in whole texts only)."""

SAMPLE = ("gpt2", "gpt_neo", "opt", "bloom", "llama", "qwen3", "phi3", "mamba", "rwkv", "jamba", "bart", "zamba2")
"""Families that `make test` tries; `make test-all` tries all."""

FAMILIES = [family for family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if family not in NOT_BUILT]

_SIZES: dict[str, Any] = (
    dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_size", "attention_hidden_size"), 32)
    | dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 2)
    | dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4)
    | dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4)
    | dict.fromkeys(("intermediate_size", "ffn_dim", "d_inner", "n_inner", "d_ff", "dff", "mamba_d_ssm"), 64)
    | dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim"), 64)
    | dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), POSITIONS)
    | dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4)
    | dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16)
    | dict.fromkeys(("kv_lora_rank", "q_lora_rank", "v_head_dim", "qk_head_dim", "head_dim"), 8)
    | dict.fromkeys(("mamba_n_heads", "mamba_d_head", "mamba_num_heads", "mamba_head_dim", "mamba_d_state"), 8)
    | dict.fromkeys(("ssm_state_size", "state_size", "linear_key_head_dim", "linear_value_head_dim"), 8)
    | dict.fromkeys(("sliding_window", "window_size", "chunk_size", "mamba_chunk_size"), 8)
    | dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "n_mamba_heads", "num_experts_per_tok"), 2)
    | dict.fromkeys(
        ("n_group", "topk_group", "first_k_dense_replace", "n_groups", "mamba_n_groups", "mamba_ngroups"), 1
    )
    | {"num_key_value_heads": 2, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "rotary_dim": 4, "mamba_dt_rank": 4}
    | {
        "vocab_size": VOCABULARY,
        "unpadded_vocab_size": VOCABULARY,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }
    | {"initializer_range": 0.3, "init_std": 0.3}
)

_BOTH_KINDS = {"layer_types": ["linear_attention", "full_attention"]}
_LATENT = {"num_key_value_heads": 4}
_LATENT_WIDE = {"num_key_value_heads": 4, "qk_rope_head_dim": 8}
_PADDED = "camembert data2vec-text prophetnet roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl xglm".split()
_PER_LAYER = {"num_kv_shared_layers": 0, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8}
_OWN: dict[str, dict[str, Any]] = {family: {"pad_token_id": 1} for family in _PADDED} | {
    "axk1": _LATENT,
    "axk2": _LATENT_WIDE,
    "bailing_hybrid": _BOTH_KINDS,
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {"layer_types": ["full_attention"] * 2, "rope_parameters": {"full_attention": None}},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v32": _LATENT_WIDE,
    "dory": {"num_hidden_layers": 4, "n_input_layers": 1, "n_output_layers": 1},
    "dots1": {"n_shared_experts": 1},
    "dots3_note_text": _LATENT,
    "gemma3n_text": {**_PER_LAYER, "laurel_rank": 4, "altup_num_inputs": 2},
    "gemma4_text": _PER_LAYER,
    "glm4_moe_lite": _LATENT_WIDE,
    "glm_moe_dsa": _LATENT_WIDE,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": _BOTH_KINDS,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {**_BOTH_KINDS, "num_key_value_heads": 4, "linear_head_dim": 8, "linear_num_heads": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"num_key_value_heads": 4, "head_dim": 4},
    "mamba2": {"num_heads": 8, "head_dim": 8, "expand": 2},
    "minicpm3": _LATENT,
    "qwen3_5_moe_text": _BOTH_KINDS,
    "qwen3_5_text": _BOTH_KINDS,
    "qwen3_next": _BOTH_KINDS,
    "qwen4_exp_text": {
        **_BOTH_KINDS,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
    },
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {
        "is_decoder": True,
        "attention_head_size": 8,
        "axial_pos_embds_dim": [16, 16],
        "axial_pos_shape": [8, 8],
        "attn_layers": ["local", "local"],
        "local_attn_chunk_length": 8,
    },
    "roc_bert": {
        "pronunciation_vocab_size": VOCABULARY,
        "shape_vocab_size": VOCABULARY,
        "pronunciation_embed_dim": 8,
        "shape_embed_dim": 8,
    },
    "xlstm": {"hidden_size": 128, "autocast_kernel_dtype": "float32"},
    "xmod": {"default_language": "en_XX", "pad_token_id": 1},
    "sarvam_mla": _LATENT,
    "youtu": _LATENT,
    "zamba": {
        "num_hidden_layers": 4,
        "layer_types": ["mamba", "hybrid", "mamba", "hybrid"],
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
    "zamba2": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}


def tiny_family_config(family: str, **settings: Any) -> PreTrainedConfig:
    """The configuration of a family with small sizes."""
    known = CONFIG_MAPPING[family]
    names = _settings(known) | set(known.attribute_map)
    sizes = {name: size for name, size in _SIZES.items() if name in names}
    config: PreTrainedConfig = known(**(sizes | _OWN.get(family, {}) | settings))
    return config


def _settings(known: type[PreTrainedConfig]) -> set[str]:
    """The settings of a kind of configuration; in early releases of transformers 5 it is no dataclass."""
    if dataclasses.is_dataclass(known):
        return {field.name for field in dataclasses.fields(known)}
    return set(inspect.signature(known).parameters)


def tiny_family_model(family: str, **settings: Any) -> PreTrainedModel:
    """A random model of a family."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(tiny_family_config(family, **settings))
    return model.eval()

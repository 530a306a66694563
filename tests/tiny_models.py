"""Tiny random models of the supported families, with a byte-level tokenizer, as folders that `from_pretrained` loads.

Weights are large enough that logits are far from flat: a wrong position or a missing token changes every number.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    GPT2Config,
    GPTJConfig,
    GPTNeoConfig,
    LlamaConfig,
    OPTConfig,
    Phi3Config,
    Phi3ForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

FAMILIES = ("gpt2", "gpt_neo", "gptj", "opt", "bloom", "llama")
WITH_BOS = ("opt", "llama")
POSITIONS = 64
BOS, EOS, PAD = 256, 257, 258
VOCABULARY = 259


def tiny_config(family: str) -> PretrainedConfig:
    """Two layers of 32, four heads, 64 positions."""
    shared = {"vocab_size": VOCABULARY, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    gpt = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS, **shared}
    wide = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, **shared}
    match family:
        case "gpt2":
            return GPT2Config(**gpt)
        case "gptj":
            return GPTJConfig(rotary_dim=4, **gpt)
        case "gpt_neo":
            return GPTNeoConfig(
                hidden_size=32,
                num_layers=2,
                num_heads=4,
                attention_types=[[["global", "local"], 1]],
                window_size=8,
                max_position_embeddings=POSITIONS,
                **shared,
            )
        case "opt":
            return OPTConfig(ffn_dim=64, word_embed_proj_dim=16, max_position_embeddings=POSITIONS, **wide)
        case "bloom":
            return BloomConfig(hidden_size=32, n_layer=2, n_head=4, **shared)
        case "llama":
            return LlamaConfig(intermediate_size=64, num_key_value_heads=2, max_position_embeddings=POSITIONS, **wide)
    raise ValueError(family)


def save_tiny_model(family: str, folder: Path, seed: int = 0) -> Path:
    """A model folder as a hub would hold it."""
    torch.manual_seed(seed)
    random_model(tiny_config(family)).save_pretrained(folder)
    byte_tokenizer(with_bos=family in WITH_BOS).save_pretrained(folder)
    return folder


def longrope_model() -> PreTrainedModel:
    """Other frequencies for all tokens of a text beyond 16, so that what was read before is of no use there."""
    torch.manual_seed(0)
    factors = {"short_factor": [1.0] * 8, "long_factor": [9.0] * 8}
    config = Phi3Config(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, pad_token_id=0,
        num_key_value_heads=2, max_position_embeddings=64, original_max_position_embeddings=16, initializer_range=0.5,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, **factors},
    )  # fmt: skip
    return Phi3ForCausalLM(config).eval()


def random_model(config: PretrainedConfig) -> PreTrainedModel:
    """A model with large random weights."""
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    return model


def byte_tokenizer(*, with_bos: bool) -> PreTrainedTokenizerFast:
    """A token a byte; with a BOS that `encode` adds by itself, as OPT's and LLaMA's do, or without."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>", "<pad>"])
    if with_bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>")

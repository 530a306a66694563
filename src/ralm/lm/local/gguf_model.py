"""Makes transformers models of GGUF files: LLaMA, Mistral and SmolLM (llama), Qwen 2 and 3, and Gemma 3.

The loader of transformers has the same weights, but leaves out settings without a word: the size of heads, biases,
scaled rotary positions, sliding windows, soft caps, and ends of turns.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import Tensor

from ralm.errors import ModelError
from ralm.lm.local.gguf import GgufFile, open_gguf

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

Config: TypeAlias = dict[str, Any]

_LLAMA_3: Final = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""How all models with LLaMA 3's long contexts scale their rotary frequencies; `factor` differs."""
_NO_EFFECT: Final = ("vocab_size", "rope.scaling.finetuned", "tensor_data_layout")
"""Settings of an architecture that change no figure: the embedding has the size, layouts other than ours have other
tensors."""
_END_TOKENS: Final = ("eos", "eot", "eom")
_UNQUANTISED: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_FREQUENCIES: Final = "rope_freqs.weight"


def _base_config(file: GgufFile) -> Config:
    """Return the settings that all architectures share, without rotary positions."""
    get, positive, tensors = file.setting, file.positive, file.tensors
    heads, width, layers = (positive(key) for key in ("attention.head_count", "embedding_length", "block_count"))
    head = positive("attention.key_length", width // heads)
    if get("attention.value_length", head) != head or not get("attention.causal", True):
        raise ModelError(f"{file.path}: only causal attention with keys as long as values is supported.")
    for name in ("token_embd.weight", f"blk.{layers - 1}.attn_norm.weight"):  # a damaged number may ask for millions
        if name not in tensors:
            raise ModelError(f"{file.path} lacks the tensor {name}, which its settings ask for.")
    if len(file.get("tokenizer.ggml.tokens", ())) != tensors["token_embd.weight"].shape[0]:
        raise ModelError(f"{file.path} is damaged: its tokenizer and token_embd.weight have different sizes.")
    ids = {name: file.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "padding", *_END_TOKENS)}
    ends = list(dict.fromkeys(ids[name] for name in _END_TOKENS if ids[name] is not None))
    return {
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": width,
        "intermediate_size": positive("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": positive("attention.head_count_kv", heads),
        "head_dim": head,
        "max_position_embeddings": positive("context_length"),
        "rms_norm_eps": positive("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": ids["bos"],
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": ids["padding"],
    }


def _rope(file: GgufFile, head: int) -> Config:
    """Return the rotary positions of all `head` numbers of a head, scaled in one of the ways that need no tensor."""
    if file.setting("rope.dimension_count", head) != head:
        raise ModelError(f"{file.path}: rotary positions in a part of each head are not supported.")
    rope: Config = {"rope_theta": file.positive("rope.freq_base", 10_000.0)}
    kind = file.setting("rope.scaling.type", "none")
    if kind == "none":
        return {**rope, "rope_type": "default"}
    if kind != "linear":
        raise ModelError(f"{file.path}: rotary positions with the scaling {kind!r} are not supported.")
    return {**rope, "rope_type": kind, "factor": file.positive("rope.scaling.factor")}


def _llama(file: GgufFile) -> "PretrainedConfig":
    from transformers import LlamaConfig

    base = _base_config(file)
    rope = _rope(file, base["head_dim"])
    if _FREQUENCIES in file.tensors:
        # float32 as the shortest decimals
        factors = [float(str(number)) for number in file.load(_FREQUENCIES, torch.float32).numpy().reshape(-1)]
        rope = _llama_3(file, rope, base["head_dim"] // 2, factors)
    tensors = file.tensors
    biases = {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_up.bias" in tensors}
    return LlamaConfig(**base, **biases, rope_parameters=rope)


def _llama_3(file: GgufFile, rope: Config, pairs: int, factors: list[float]) -> Config:
    """Return the scaling of LLaMA 3; ModelError if a file has other factors, or asks for a second scaling."""
    low, high, original = _LLAMA_3.values()
    turns = (original * rope["rope_theta"] ** -(number / pairs) / math.tau for number in range(pairs))
    shares = (min(1.0, max(0.0, (turn - low) / (high - low))) for turn in turns)
    expected = [1 / ((1 - share) / max(factors) + share) for share in shares]
    is_theirs = len(factors) == pairs and all(map(partial(math.isclose, rel_tol=1e-4), factors, expected))
    if rope["rope_type"] != "default" or not is_theirs:
        raise ModelError(f"{file.path}: {_FREQUENCIES} scales rotary positions in another way than LLaMA 3.")
    return {**rope, "rope_type": "llama3", "factor": max(factors), **_LLAMA_3} if max(factors) > 1 else rope


def _qwen(config: str, file: GgufFile) -> "PretrainedConfig":
    """Return the configuration of Qwen 2 or 3, which implies the tensors of a layer."""
    import transformers

    base = _base_config(file)
    made: PretrainedConfig = getattr(transformers, config)(**base, rope_parameters=_rope(file, base["head_dim"]))
    return made


def _gemma_3(file: GgufFile) -> "PretrainedConfig":
    """Return the configuration of Gemma 3; as in llama.cpp, the width scales attention in the 27B model (62 layers)."""
    from transformers import Gemma3TextConfig

    base = _base_config(file)
    period = file.positive("attention.sliding_window_pattern", 6)
    is_27b = base["num_hidden_layers"] == 62
    local = {"rope_type": "default", "rope_theta": file.positive("rope.freq_base_swa", 10_000.0)}
    return Gemma3TextConfig(
        **base,
        query_pre_attn_scalar=base["hidden_size"] // base["num_attention_heads"] if is_27b else base["head_dim"],
        sliding_window=file.positive("attention.sliding_window"),
        layer_types=[
            "sliding_attention" if (layer + 1) % period else "full_attention"
            for layer in range(base["num_hidden_layers"])
        ],
        final_logit_softcapping=file.setting("final_logit_softcapping") or None,
        rope_parameters={"full_attention": _rope(file, base["head_dim"]), "sliding_attention": local},
    )


_CONFIGS: Final[dict[str, Callable[[GgufFile], "PretrainedConfig"]]] = {
    "llama": _llama,
    "qwen2": partial(_qwen, "Qwen2Config"),
    "qwen3": partial(_qwen, "Qwen3Config"),
    "gemma3": _gemma_3,
}


def load_gguf(name: str, dtype: Any = "auto", device: str = "cpu", **options: Any) -> "PreTrainedModel":
    """Return the model in a GGUF file; `dtype` auto is that of its matrices, else float32 or, on a GPU, bfloat16."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    file = open_gguf(name)
    architecture = file.architecture
    if file.metadata.get("general.type", "model") != "model":
        raise ModelError(f"{name} is a GGUF file of the type {file.metadata['general.type']}, not of a model.")
    if architecture not in _CONFIGS:
        raise ModelError(
            f"{name} has the architecture {architecture}, which is not supported: give one of {', '.join(_CONFIGS)}."
        )
    config = _CONFIGS[architecture](file)
    if key := file.unused(f"{architecture}.", _NO_EFFECT):
        raise ModelError(f"{name} has the setting {key}={file.metadata[key]}, which is not supported.")
    loader = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    names = _names(file, loader, config)
    if dtype == "auto":
        kinds = {tensor.kind.name for tensor in file.tensors.values() if len(tensor.shape) > 1}
        several = torch.bfloat16 if device == "cuda" and kinds - _UNQUANTISED.keys() else torch.float32
        dtype = _UNQUANTISED.get("".join(kinds), several)
    state = {theirs: _weights(file, ours, config, dtype) for ours, theirs in sorted(names.items())}
    # Private: transformers without a folder; GGUF files against their sources.
    model: PreTrainedModel = loader.from_pretrained(None, config=config, state_dict=state, dtype=dtype, **options)
    model.config.name_or_path = name
    return model


def _names(file: GgufFile, loader: Any, config: "PretrainedConfig") -> dict[str, str]:
    """Return the name of each tensor in transformers; ModelError if one is missing, not known, or of another shape."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    with torch.device("meta"):
        shapes = {name: tuple(weights.shape) for name, weights in loader(config).state_dict().items()}
    if config.tie_word_embeddings:
        del shapes["lm_head.weight"]
    table = get_tensor_name_map(MODEL_ARCH[file.architecture.upper()], config.num_hidden_layers)
    names = {table.get_name(theirs, (".weight", ".bias")): theirs for theirs in shapes}
    if missing := names.keys() - file.tensors.keys():
        theirs = min(names[name] for name in missing)
        raise ModelError(f"{file.path} lacks weights that its settings ask for: {theirs} in transformers' names.")
    if unknown := file.tensors.keys() - names.keys() - file.used:
        raise ModelError(f"{file.path} has the tensor {min(unknown)}, which is not supported.")
    for name, theirs in names.items():
        if (shape := file.tensors[name].shape) != shapes[theirs]:
            raise ModelError(f"{file.path} has the tensor {name} of shape {shape} instead of {shapes[theirs]}.")
    return names


def _weights(file: GgufFile, name: str, config: "PretrainedConfig", dtype: torch.dtype) -> Tensor:
    """Return the weights of a tensor as transformers has them."""
    if file.architecture == "gemma3" and name.endswith("norm.weight"):  # stored with the 1 that transformers adds
        return (file.load(name, torch.float32) - 1).to(dtype)
    weights = file.load(name, dtype)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    part = name.split(".")[-2]
    if file.architecture == "llama" and part in heads:
        # rotary positions turn neighbours in the file, the halves of a head in transformers
        return weights.view(heads[part], -1, 2, *weights.shape[1:]).transpose(1, 2).reshape_as(weights)
    return weights

"""Makes transformers models of GGUF files: LLaMA, Mistral and SmolLM (llama), Qwen 2 and 3, Phi-3 and Gemma 3."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import Tensor

from ralm.errors import ModelError
from ralm.lm.local.gguf_file import GgufFile, open_gguf

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

Config: TypeAlias = dict[str, Any]

_LLAMA_3: Final = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""How all models with LLaMA 3's long contexts scale their rotary frequencies; `factor` differs."""
_NO_EFFECT: Final = ("vocab_size", "rope.scaling.finetuned", "tensor_data_layout")
"""Settings of an architecture that change no figure: the embedding has the size, layouts other than ours have other
tensors."""
_END_TOKENS: Final = ("eos", "eot", "eom")
_OUTSIDE: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_PHI_3: Final = {**_LAYER, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_GEMMA_3: Final = {
    **_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_IN_LAYER: Final = re.compile(r"blk\.(0|[1-9][0-9]*)\.(\w+)\.(weight|bias)")
_FREQUENCIES: Final = "rope_freqs.weight"
_FACTORS: Final = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}


class _Settings:
    """The settings of a file's architecture; remembers which were read."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self.file = file
        self._prefix = f"{architecture}."
        self._unread = {key for key in file.metadata if key.startswith(self._prefix)}
        self.read_tensors: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a setting, or the default; ModelError if it differs from layer to layer."""
        self._unread.discard(self._prefix + key)
        value = self.file.metadata.get(self._prefix + key, default)
        if isinstance(value, list) and len(set(value)) == 1:
            return value[0]
        if isinstance(value, list):
            raise ModelError(f"{self.file.name}: layers with different {self._prefix}{key} are not supported.")
        return value

    def positive(self, key: str, default: Any = None) -> Any:
        """The value of a setting; ModelError if it is no positive number, or is missing and has no default."""
        value = self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise ModelError(f"{self.file.name} is damaged: {self._prefix}{key} is {value!r}, not a positive number.")
        return value

    def factors(self, name: str) -> list[float]:
        """The numbers of a tensor that changes rotary frequencies, float32 as the shortest decimals; or none."""
        if name not in self.file.tensors:
            return []
        self.read_tensors.add(name)
        return [float(str(one)) for one in self.file.load(name, torch.float32).numpy().reshape(-1)]

    def check_all_read(self) -> None:
        """Raise ModelError if the file has a setting that was not read and is not switched off."""
        metadata = self.file.metadata
        changing = [key for key in self._unread if metadata[key] not in (0, "", "none")]
        changing = sorted(set(changing) - {self._prefix + key for key in _NO_EFFECT})
        if changing:
            raise ModelError(
                f"{self.file.name} has the setting {changing[0]}={metadata[changing[0]]}, which is not supported."
            )


def _base_config(settings: _Settings) -> Config:
    """The settings that all architectures share, without rotary positions."""
    get, positive = settings.get, settings.positive
    tensors, metadata = settings.file.tensors, settings.file.metadata
    heads, width, layers = (positive(key) for key in ("attention.head_count", "embedding_length", "block_count"))
    head = positive("attention.key_length", width // heads)
    if get("attention.value_length", head) != head or not get("attention.causal", True):
        raise ModelError(f"{settings.file.name}: only causal attention with keys as long as values is supported.")
    for name in ("token_embd.weight", f"blk.{layers - 1}.attn_norm.weight"):  # a damaged number may ask for millions
        if name not in tensors:
            raise ModelError(f"{settings.file.name} lacks the tensor {name}, which its settings ask for.")
    if len(metadata.get("tokenizer.ggml.tokens", ())) != tensors["token_embd.weight"].shape[0]:
        raise ModelError(f"{settings.file.name} is damaged: its tokenizer and token_embd.weight have different sizes.")
    ids = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "padding", *_END_TOKENS)}
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


def _rope(settings: _Settings, head: int) -> Config:
    """The rotary positions of all `head` numbers of a head, scaled in one of the ways that need no tensor."""
    if settings.get("rope.dimension_count", head) != head:
        raise ModelError(f"{settings.file.name}: rotary positions in a part of each head are not supported.")
    rope: Config = {"rope_theta": settings.positive("rope.freq_base", 10_000.0)}
    kind = settings.get("rope.scaling.type", "none")
    original = settings.get("rope.scaling.original_context_length")
    if kind == "none":
        return {**rope, "rope_type": "default"}
    rope |= {"rope_type": kind, "factor": settings.positive("rope.scaling.factor")}
    if kind == "linear":
        return rope
    if kind != "yarn" or not original:
        raise ModelError(f"{settings.file.name}: rotary positions with the scaling {kind!r} are not supported.")
    optional = {key: settings.get(f"rope.scaling.yarn_{key}") for key in ("beta_fast", "beta_slow")}
    given = {key: float(value) for key, value in optional.items() if value is not None}
    return {**rope, **given, "original_max_position_embeddings": original}


def _llama(settings: _Settings) -> "PretrainedConfig":
    from transformers import LlamaConfig

    base = _base_config(settings)
    rope = _rope(settings, base["head_dim"])
    if factors := settings.factors(_FREQUENCIES):
        rope = _llama_3(settings, rope, base["head_dim"] // 2, factors)
    tensors = settings.file.tensors
    biases = {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_up.bias" in tensors}
    return LlamaConfig(**base, **biases, rope_parameters=rope)


def _llama_3(settings: _Settings, rope: Config, pairs: int, factors: list[float]) -> Config:
    """The scaling of LLaMA 3 whose factors of the frequencies of all pairs a file has; ModelError if they are others,
    or if the file asks for a second scaling."""
    low, high, original = _LLAMA_3.values()
    turns = (original * rope["rope_theta"] ** -(number / pairs) / math.tau for number in range(pairs))
    smooth = (min(1.0, max(0.0, (one - low) / (high - low))) for one in turns)
    expected = [1 / ((1 - one) / max(factors) + one) for one in smooth]
    is_theirs = len(factors) == pairs and all(map(partial(math.isclose, rel_tol=1e-4), factors, expected))
    if rope["rope_type"] != "default" or not is_theirs:
        raise ModelError(f"{settings.file.name}: {_FREQUENCIES} scales rotary positions in another way than LLaMA 3.")
    return {**rope, "rope_type": "llama3", "factor": max(factors), **_LLAMA_3} if max(factors) > 1 else rope


def _qwen(config: str, settings: _Settings) -> "PretrainedConfig":
    """Qwen 2 and 3 differ in the tensors of a layer, which their configurations imply."""
    import transformers

    base = _base_config(settings)
    made: PretrainedConfig = getattr(transformers, config)(**base, rope_parameters=_rope(settings, base["head_dim"]))
    return made


def _phi_3(settings: _Settings) -> "PretrainedConfig":
    from transformers import Phi3Config

    base = _base_config(settings)
    rotary = settings.get("rope.dimension_count", base["head_dim"])
    original = settings.get("rope.scaling.original_context_length", base["max_position_embeddings"])
    factors = {key: settings.factors(name) for key, name in _FACTORS.items()}
    if any(factors.values()):
        if not all(factors.values()) or settings.get("rope.scaling.type", "longrope") != "longrope":
            raise ModelError(f"{settings.file.name}: only LongRoPE with short and long factors is supported.")
        rope: Config = {
            "rope_type": "longrope",
            "rope_theta": settings.positive("rope.freq_base", 10_000.0),
            "attention_factor": settings.get("rope.scaling.attn_factor"),
            "original_max_position_embeddings": original,
            **factors,
        }
    else:
        rope = _rope(settings, rotary)
    rope["partial_rotary_factor"] = rotary / base["head_dim"]
    return Phi3Config(
        **base,
        original_max_position_embeddings=original,
        sliding_window=settings.get("attention.sliding_window") or None,
        rope_parameters=rope,
    )


def _gemma_3(settings: _Settings) -> "PretrainedConfig":
    """As llama.cpp, takes the scale of attention in the 27B model, the one with 62 layers, from the width."""
    from transformers import Gemma3TextConfig

    base = _base_config(settings)
    period = settings.positive("attention.sliding_window_pattern", 6)
    is_27b = base["num_hidden_layers"] == 62
    local = {"rope_type": "default", "rope_theta": settings.positive("rope.freq_base_swa", 10_000.0)}
    return Gemma3TextConfig(
        **base,
        query_pre_attn_scalar=base["hidden_size"] // base["num_attention_heads"] if is_27b else base["head_dim"],
        sliding_window=settings.positive("attention.sliding_window"),
        layer_types=[
            "sliding_attention" if (layer + 1) % period else "full_attention"
            for layer in range(base["num_hidden_layers"])
        ],
        final_logit_softcapping=settings.get("final_logit_softcapping") or None,
        rope_parameters={"full_attention": _rope(settings, base["head_dim"]), "sliding_attention": local},
    )


@dataclass(frozen=True)
class _Family:
    """How the files of an architecture become a model: its configuration, and the names of the parts of a layer.

    `turns_neighbours`: rotary positions turn neighbours in the file, the halves of a head in transformers. `adds_one`:
    norms are stored with the 1 that transformers adds.
    """

    config: Callable[[_Settings], "PretrainedConfig"]
    layer: Mapping[str, str]
    turns_neighbours: bool = False
    adds_one: bool = False


_FAMILIES: Final = {
    "llama": _Family(_llama, _LAYER, turns_neighbours=True),
    "qwen2": _Family(partial(_qwen, "Qwen2Config"), _LAYER),
    "qwen3": _Family(partial(_qwen, "Qwen3Config"), _LAYER),
    "phi3": _Family(_phi_3, _PHI_3),
    "gemma3": _Family(_gemma_3, _GEMMA_3, adds_one=True),
}


def load_gguf(name: str, dtype: Any = "auto", **options: Any) -> "PreTrainedModel":
    """The model in a GGUF file, dequantised to `dtype` (auto: see `GgufFile.dtype`); `options` are those of
    `from_pretrained`. Its configuration has a hash of the file, so that another file is never taken for the same model.

    Raises what `open_gguf` raises; ModelError naming the first architecture, setting or tensor that is not supported.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    file = open_gguf(name)
    metadata = file.metadata
    architecture = str(metadata.get("general.architecture"))
    if metadata.get("general.type", "model") != "model":
        raise ModelError(f"{name} is a GGUF file of the type {metadata['general.type']}, not of a model.")
    if architecture not in _FAMILIES:
        raise ModelError(
            f"{name} has the architecture {architecture}, which is not supported: give one of {', '.join(_FAMILIES)}."
        )
    family = _FAMILIES[architecture]
    settings = _Settings(file, architecture)
    config = family.config(settings)
    settings.check_all_read()
    loader = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    names = _names(file, family, settings.read_tensors)
    _check_shapes(file, names, loader, config)
    dtype = file.dtype if dtype == "auto" else dtype
    state = {theirs: _weights(file, ours, family, config, dtype) for ours, theirs in names.items()}
    model: PreTrainedModel = loader.from_pretrained(None, config=config, state_dict=state, dtype=dtype, **options)
    model.config.name_or_path = name
    model.config.gguf_sha256 = file.digest.hexdigest()
    return model


def _names(file: GgufFile, family: _Family, read: set[str]) -> dict[str, str]:
    """The name of each tensor in transformers, by its name in the file; ModelError if one is not known."""
    names = {}
    for name in file.tensors.keys() - read:
        stem, _, suffix = name.rpartition(".")
        if found := _IN_LAYER.fullmatch(name):
            number, part, suffix = found.groups()
            layer = family.layer.get(part)
            theirs = None if layer is None else f"model.layers.{number}.{layer}.{suffix}"
        else:
            outside = _OUTSIDE.get(stem)
            theirs = None if outside is None else f"{outside}.{suffix}"
        if theirs is None:
            raise ModelError(f"{file.name} has the tensor {name}, which is not supported.")
        names[name] = theirs
    return dict(sorted(names.items()))


def _check_shapes(file: GgufFile, names: dict[str, str], loader: Any, config: "PretrainedConfig") -> None:
    """Raise ModelError if a tensor is missing, unexpected, or of another shape than the settings ask for."""
    with torch.device("meta"):
        expected = {key: tuple(value.shape) for key, value in loader(config).state_dict().items()}
    if config.tie_word_embeddings:
        del expected["lm_head.weight"]
    given = {theirs: (name, file.tensors[name].shape) for name, theirs in names.items()}
    if missing := expected.keys() - given.keys():
        raise ModelError(f"{file.name} lacks weights that its settings ask for: {min(missing)} in transformers' names.")
    for theirs, (name, shape) in given.items():
        if theirs not in expected:
            raise ModelError(f"{file.name} has the tensor {name}, which is not supported.")
        if shape != expected[theirs]:
            raise ModelError(f"{file.name} has the tensor {name} of shape {shape} instead of {expected[theirs]}.")


def _weights(file: GgufFile, name: str, family: _Family, config: "PretrainedConfig", dtype: torch.dtype) -> Tensor:
    """The weights of a tensor as transformers has them; norms are changed in float32."""
    if family.adds_one and name.endswith("norm.weight"):
        return (file.load(name, torch.float32) - 1).to(dtype)
    weights = file.load(name, dtype)
    if family.turns_neighbours and ".attn_q." in name:
        return _in_halves(weights, config.num_attention_heads)
    if family.turns_neighbours and ".attn_k." in name:
        return _in_halves(weights, config.num_key_value_heads)
    return weights


def _in_halves(weights: Tensor, heads: int) -> Tensor:
    """The rows of a projection reordered: rotary pairs that were neighbours are split between the halves of a head."""
    return weights.view(heads, -1, 2, *weights.shape[1:]).transpose(1, 2).reshape_as(weights)

"""Loading a complete transformers model from a folder or hub; others than causal language models are refused.

Knows files and classes of models; knows nothing of texts.
"""

from collections.abc import Collection
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING

from ralm.errors import ModelError
from ralm.lm.local.files import listed, no_bars


def load_checkpoint(name: str, **options: Any) -> PreTrainedModel:
    """The causal language model in a folder or on the hub; a multimodal model is loaded whole.

    `options` are those of `from_pretrained`. Raises ModelError if it is an encoder-decoder, or if weights are missing
    or have another shape, since transformers would fill them with random numbers. Errors of transformers pass through.
    """
    config = _config(name)
    _check_decoder(name, config)
    model: PreTrainedModel
    with no_bars():
        model, loaded = _loader(config).from_pretrained(name, output_loading_info=True, **options)
    _check_whole(name, loaded["missing_keys"], loaded["mismatched_keys"])
    return model


def _config(name: str) -> PreTrainedConfig | None:
    """The configuration; None if transformers finds the model in another way, such as through an adapter."""
    try:
        return AutoConfig.from_pretrained(name)
    except (OSError, ValueError):
        return None


def _loader(config: PreTrainedConfig | None) -> Any:
    """The class that loads a model: the multimodal one if there is none for its text part alone."""
    known = type(config)
    if known not in MODEL_FOR_CAUSAL_LM_MAPPING and known in MODEL_FOR_MULTIMODAL_LM_MAPPING:
        return AutoModelForMultimodalLM
    return AutoModelForCausalLM


def _check_decoder(name: str, config: PreTrainedConfig | None) -> None:
    if config is None:
        return
    if any(getattr(part, "is_encoder_decoder", False) for part in (config, config.get_text_config(decoder=True))):
        raise ModelError(
            f"{name} is an encoder-decoder ({config.model_type}), whose decoder needs the output of its encoder: "
            "give a causal language model."
        )


def _check_whole(name: str, missing: Collection[str], mismatched: Collection[Any]) -> None:
    """Raise ModelError if transformers had to fill in weights."""
    if missing:
        raise ModelError(
            f"{name} lacks weights of a language model: {listed(missing)}. Give a checkpoint that was saved with its "
            "output layer."
        )
    if mismatched:
        keys = [key if isinstance(key, str) else key[0] for key in mismatched]
        raise ModelError(f"{name} has weights whose shapes do not match its config.json: {listed(keys)}.")

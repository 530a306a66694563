"""A transformers model from a folder or hub, whole: what is no causal language model, or lacks weights, is refused.

Knows files and classes of models; knows nothing of texts.
"""

from collections.abc import Collection
from typing import Any, Final

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING

from ralm.errors import ModelError
from ralm.lm.local.files import no_bars

_NAMED: Final = 3
"""Weights that a message names, if more are missing."""


def load_checkpoint(name: str, **options: Any) -> PreTrainedModel:
    """The causal language model in a folder or on the hub; of a model that sees or hears too, the whole of it.

    `options` are those of `from_pretrained`. Raises ModelError where there is none, where it is an encoder-decoder, and
    where weights are missing or of another shape: transformers would make up random ones. Lets through whatever
    transformers raises.
    """
    config = _config(name)
    _check_decoder(name, config)
    model: PreTrainedModel
    with no_bars():
        model, loaded = _loader(config).from_pretrained(name, output_loading_info=True, **options)
    _check_whole(name, loaded["missing_keys"], loaded["mismatched_keys"])
    return model


def _config(name: str) -> PreTrainedConfig | None:
    """The configuration; none where transformers finds the model by other ways, as through an adapter."""
    try:
        return AutoConfig.from_pretrained(name)
    except (OSError, ValueError):
        return None


def _loader(config: PreTrainedConfig | None) -> Any:
    """The class that loads a model: where its text alone has no class, the one that loads all of it."""
    known = type(config)
    if known not in MODEL_FOR_CAUSAL_LM_MAPPING and known in MODEL_FOR_MULTIMODAL_LM_MAPPING:
        return AutoModelForMultimodalLM
    return AutoModelForCausalLM


def _check_decoder(name: str, config: PreTrainedConfig | None) -> None:
    if config is None:
        return
    if any(getattr(part, "is_encoder_decoder", False) for part in (config, config.get_text_config(decoder=True))):
        raise ModelError(
            f"{name} is an encoder-decoder ({config.model_type}), whose decoder goes on from what its encoder has "
            "read: give a causal language model."
        )


def _check_whole(name: str, missing: Collection[str], mismatched: Collection[Any]) -> None:
    """Raise ModelError where weights had to be made up."""
    if missing:
        raise ModelError(
            f"{name} lacks weights of a language model: {_listed(missing)}. Give a checkpoint that was saved with its "
            "output layer."
        )
    if mismatched:
        keys = [key if isinstance(key, str) else key[0] for key in mismatched]
        raise ModelError(f"{name} has weights of another shape than its config.json says: {_listed(keys)}.")


def _listed(keys: Collection[str]) -> str:
    named = sorted(keys)[:_NAMED]
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return ", ".join(named) + more

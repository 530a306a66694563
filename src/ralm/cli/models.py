"""Language models and their tokenizers by name, as several commands load them. Importing this takes seconds: torch."""

from ralm.lm.local.model import Dtype, LocalLanguageModel, ModelOptions
from ralm.lm.local.tokenization import ModelTokenizer, load_model_tokenizer
from ralm.lm.named import load_language_model, model_folder


def load_tokenizer(name: str) -> ModelTokenizer:
    """The tokenizer of a model, without its weights."""
    return load_model_tokenizer(model_folder(name))


def load_model(name: str, dtype: Dtype, device: str, compile_layers: bool = False) -> LocalLanguageModel:
    """A model by its name, as the options say."""
    return load_language_model(name, ModelOptions(dtype=dtype, device=device, compile=compile_layers))

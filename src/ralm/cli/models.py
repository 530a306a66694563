"""Loads language models and tokenizers by name. Importing this module takes seconds, because it imports torch."""

from ralm.lm.local.model import LocalLanguageModel
from ralm.lm.local.options import ModelOptions
from ralm.lm.local.tokenization import ModelTokenizer, load_model_tokenizer
from ralm.lm.named import load_language_model, model_folder


def load_tokenizer(name: str) -> ModelTokenizer:
    """The tokenizer of a model, without its weights."""
    return load_model_tokenizer(model_folder(name))


def load_model(name: str, options: ModelOptions) -> LocalLanguageModel:
    """Load a model by name with these options."""
    return load_language_model(name, options)

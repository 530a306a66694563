"""Tiny random cross-encoders with a tokenizer of letters, as folders that sentence-transformers loads."""

from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification

from tests.tiny_encoders import save_with_letters, tiny_bert_config

LENGTH = 256


def save_tiny_cross_encoder(folder: Path, seed: int = 0, labels: int = 1) -> Path:
    """A cross-encoder of two layers that reads 256 letters."""
    torch.manual_seed(seed)
    config = BertConfig(**(tiny_bert_config() | {"max_position_embeddings": LENGTH}), num_labels=labels)
    return save_with_letters(BertForSequenceClassification(config), folder)

"""Tiny random encoders and cross-encoders with a tokenizer of letters, as folders that their libraries load."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    BertTokenizerFast,
    DPRConfig,
    DPRContextEncoder,
    DPRQuestionEncoder,
    PreTrainedModel,
)

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,'?-"
POSITIONS = 64
WIDTH = 32
LENGTH = 256


def tiny_bert_config(width: int = WIDTH) -> dict[str, int]:
    """Two layers, four heads, 64 positions."""
    return {
        "vocab_size": len(SPECIAL) + 2 * len(LETTERS),
        "hidden_size": width,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 2 * width,
        "max_position_embeddings": POSITIONS,
    }


def save_tiny_bert(folder: Path, seed: int = 0, width: int = WIDTH) -> Path:
    """A bare BERT without pooler, as Contriever is."""
    torch.manual_seed(seed)
    return save_with_letters(BertModel(BertConfig(**tiny_bert_config(width)), add_pooling_layer=False), folder)


def save_tiny_dpr(folder: Path, *, question: bool, seed: int, projection: int = 0) -> Path:
    """One of DPR's two encoders."""
    torch.manual_seed(seed)
    config = DPRConfig(projection_dim=projection, **tiny_bert_config())
    return save_with_letters(DPRQuestionEncoder(config) if question else DPRContextEncoder(config), folder)


def save_tiny_static(folder: Path) -> Path:
    """An encoder without layers: the mean of vectors of a text's tokens, however many there are."""
    torch.manual_seed(0)
    module = StaticEmbedding(letter_tokenizer().backend_tokenizer, embedding_dim=WIDTH)
    SentenceTransformer(modules=[module]).save_pretrained(str(folder))
    return folder


def save_with_letters(model: PreTrainedModel, folder: Path) -> Path:
    """Weights large enough that vectors of different texts differ much."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    letter_tokenizer().save_pretrained(folder)
    return folder


def drop_weights(folder: Path, *names: str) -> Path:
    """The folder without the weights whose names hold one of these words."""
    file = folder / "model.safetensors"
    kept = {key: weights for key, weights in load_file(file).items() if not any(name in key for name in names)}
    save_file(kept, file, metadata={"format": "pt"})
    return folder


def letter_tokenizer() -> BertTokenizerFast:
    """BERT's tokenizer with a vocabulary of letters: a token a letter."""
    pieces = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    backend = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return BertTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def save_tiny_cross_encoder(folder: Path, seed: int = 0, labels: int = 1) -> Path:
    """A cross-encoder of two layers that reads 256 letters."""
    torch.manual_seed(seed)
    config = BertConfig(**(tiny_bert_config() | {"max_position_embeddings": LENGTH}), num_labels=labels)
    return save_with_letters(BertForSequenceClassification(config), folder)

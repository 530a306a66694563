"""Tiny tokenizers of every kind that a model may come with, each as a folder that `from_pretrained` loads.

Byte-level BPE is in `tests/tiny_models.py`. Here: SentencePiece as LLaMA has it, which falls back to bytes; WordPiece
and Unigram, which write what they do not know as `[UNK]` or `<unk>`; and two in Python, of bytes and of words.
"""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    ByT5Tokenizer,
    CTRLTokenizer,
    GPT2Config,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def llama_tokenizer() -> PreTrainedTokenizerFast:
    """LLaMA's: a space before the text, `\u2581` for spaces, bytes for what it does not know, a BOS."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        *LETTERS,
        *".,!'",
        "th",
        "\u2581th",
    ]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    merges = [("t", "h"), ("\u2581", "th")]
    backend = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def wordpiece_tokenizer() -> PreTrainedTokenizerFast:
    """BERT's: lower case, no accents, pieces of words; a word with a letter that it does not know is `[UNK]`."""
    pieces = ["[PAD]", "[UNK]", "[EOS]", *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,!'", "the", "##ing"]
    backend = Tokenizer(models.WordPiece(vocab={piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    backend.add_special_tokens(["[PAD]", "[UNK]", "[EOS]"])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="[EOS]",
        unk_token="[UNK]",
        pad_token="[PAD]",
        clean_up_tokenization_spaces=True,
    )


def unigram_tokenizer() -> PreTrainedTokenizerFast:
    """T5's: NFKC, runs of spaces made one, `\u2581` before words, `<unk>` for unknown letters."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("\u2581", -2.0), *((letter, -3.0) for letter in LETTERS + ".,!'")]
    backend = Tokenizer(models.Unigram([*pieces, ("\u2581the", -2.5)], unk_id=0, byte_fallback=False))
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    backend.decoder = decoders.Metaspace(replacement="\u2581", prepend_scheme="always")
    backend.add_special_tokens(["<unk>", "</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")


def byt5_tokenizer() -> PreTrainedTokenizerBase:
    """ByT5's: a token a byte, in Python, without any vocabulary file."""
    return ByT5Tokenizer(extra_ids=0)


def ctrl_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """CTRL's: words and pieces of words that go on (`@@`), in Python; white space but one is lost."""
    ends, inside = [*LETTERS, *".,!'", "the"], [f"{letter}@@" for letter in LETTERS + ".,!'"]
    folder.mkdir(parents=True, exist_ok=True)
    pieces = {piece: number for number, piece in enumerate(["<unk>", *ends, *inside, "th@@"])}
    (folder / "vocab.json").write_text(json.dumps(pieces))
    (folder / "merges.txt").write_text("#version: 0.2\nt h\nth e</w>\n")
    return CTRLTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))


TOKENIZERS: dict[str, Callable[[Path], PreTrainedTokenizerBase]] = {
    "llama": lambda _: llama_tokenizer(),
    "wordpiece": lambda _: wordpiece_tokenizer(),
    "unigram": lambda _: unigram_tokenizer(),
    "byt5": lambda _: byt5_tokenizer(),
}


def save_with_tokenizer(kind: str, folder: Path) -> Path:
    """A tiny random GPT-2 with one of these tokenizers, as a hub would hold it."""
    tokenizer = TOKENIZERS[kind](folder)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer) + 8, n_embd=16, n_layer=1, n_head=2, n_positions=64, bos_token_id=None, eos_token_id=1
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

"""Reads GGUF files, llama.cpp's format of a model: metadata, weights, and the tokenizer.

The package gguf dequantises. Its reader, which transformers uses too, needs 30 to 50 times as long for a header, half a
minute for a large vocabulary, and believes what a header says of sizes. The tokenizers that transformers makes differ
between its versions: they split the numbers of SmolLM2, and what they do not know, as GPT-2 does.
"""

import math
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

# Private: transformers' merges; GGUF files against their sources.
from transformers.tokenization_utils_base import generate_merges

from ralm.errors import ModelError, extra

if TYPE_CHECKING:
    import torch

_SCALARS: Final = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
"""The formats (struct) of numbers in metadata, by the number of their type."""
_FLOAT32, _STRING, _ARRAY = 6, 8, 9
_VERSIONS: Final = (2, 3)
_MAX_DIMENSIONS: Final = 4
_CHUNK: Final = 1 << 22
"""The number of weights that are dequantised at once: their float32 copy takes 16 MB."""
_OFF: Final[tuple[Any, ...]] = (False, 0, "", "none", [])
"""Values that switch a setting off."""
_CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3: Final = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN_2: Final = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_REST}"
_GPT_2, _DIGITS = "", "digits"
_SPLITTING: Final = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt"), _GPT_2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "dbrx", "smaug-bpe"), _LLAMA_3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN_2),
}
"""How text is split before BPE, by `tokenizer.ggml.pre`: a pattern, GPT-2's way, or that with single digits."""
_WHOLE_WORDS: Final = {"llama-bpe", "llama3", "llama-v3", "falcon3"}
"""Those that read a word that is a token as that token, whatever the merges, and begin texts with a BOS by default."""
_SPACE: Final = "\u2581"
_NO_EFFECT: Final = ("_token_id", ".huggingface.json", ".token_type_count", ".merges")
"""The ends of settings that need not be read: SentencePiece's BPE has scores instead of merges."""
_TEMPLATE: Final = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The place of a tensor's weights, in rows of `row_bytes`, gguf's type `kind`, and the dequantised `shape`."""

    offset: int
    shape: tuple[int, ...]
    kind: Any
    row_bytes: int

    @property
    def rows(self) -> int:
        """The number of rows, which are stored one after another."""
        return math.prod(self.shape[:-1])


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The metadata of a model in a GGUF file and its tensors; `used` names what was read."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]
    used: set[str] = field(default_factory=set)

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture, with which the names of its settings begin."""
        return str(self.metadata.get("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a setting."""
        self.used.add(key)
        return self.metadata.get(key, default)

    def setting(self, key: str, default: Any = None) -> Any:
        """Return the value of a setting of the architecture; ModelError if it differs from layer to layer."""
        value = self.get(f"{self.architecture}.{key}", default)
        if isinstance(value, list) and len(set(value)) == 1:
            return value[0]
        if isinstance(value, list):
            raise ModelError(f"{self.path}: layers with different {self.architecture}.{key} are not supported.")
        return value

    def positive(self, key: str, default: Any = None) -> Any:
        """Return a positive number among the settings of the architecture; ModelError if it is none, or missing."""
        value = self.setting(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise ModelError(f"{self.path} is damaged: {self.architecture}.{key} is {value!r}, not a positive number.")
        return value

    def unused(self, prefix: str, no_effect: tuple[str, ...]) -> str | None:
        """Return the first setting with this prefix that nobody asked for, not switched off, without these ends."""
        keys = (key for key in self.metadata.keys() - self.used if key.startswith(prefix))
        return min(
            (key for key in keys if not key.endswith(no_effect) and self.metadata[key] not in _OFF), default=None
        )

    def load(self, name: str, dtype: "torch.dtype") -> "torch.Tensor":
        """Return the dequantised weights of a tensor, a few rows at a time; ModelError if the file is shorter now."""
        import torch
        from gguf.quants import dequantize

        self.used.add(name)
        stored = self.tensors[name]
        weights = torch.empty((stored.rows, stored.shape[-1]), dtype=dtype)
        with self.path.open("rb") as file:
            file.seek(stored.offset)
            for part in torch.split(weights, max(1, _CHUNK // stored.shape[-1])):
                data = np.empty((len(part), stored.row_bytes), dtype=np.uint8)
                if file.readinto(data.data.cast("B")) != data.nbytes:
                    raise _truncated(self.path)
                part.copy_(torch.from_numpy(dequantize(data, stored.kind)))
        return weights.reshape(stored.shape)


def open_gguf(name: str) -> GgufFile:
    """Return the header of a GGUF file with room for all its weights; ModelError if it is none, or damaged."""
    path = Path(name)
    if not path.is_file():
        raise ModelError(f"{name} is a folder, not a file." if path.is_dir() else f"there is no file {name}.")
    with extra("gguf", "GGUF files need", ("gguf",)):
        import gguf  # noqa: F401
    with path.open("rb") as file:
        cursor = _Cursor(file, path)
        if cursor.unpack("s", 4) != (b"GGUF",):
            raise ModelError(f"{path} is not a GGUF file: it does not begin with GGUF.")
        version, tensor_count, setting_count = cursor.unpack("IQQ")
        if version not in _VERSIONS:
            raise ModelError(f"{path} has GGUF's version {version}, or is big-endian; versions 2 and 3 can be read.")
        metadata = cursor.settings(setting_count)
        if metadata.get("split.count", 0) > 1:
            raise ModelError(f"{path} is a part of a model: join the parts with llama-gguf-split --merge.")
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelError(f"{path} is damaged: its alignment is {alignment!r}.")
        stored = [_tensor(cursor, path) for _ in range(tensor_count)]
        begin = -(-file.tell() // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    end = 0
    for label, tensor in stored:
        if label in tensors or tensor.offset != -(-end // alignment) * alignment:
            raise ModelError(
                f"{path} is damaged: the tensor {label} is stored twice, or does not follow the one before it."
            )
        end = tensor.offset + tensor.rows * tensor.row_bytes
        tensors[label] = replace(tensor, offset=begin + tensor.offset)
    if begin + end > path.stat().st_size:
        raise _truncated(path)
    return GgufFile(path, metadata, tensors)


def _truncated(path: Path) -> ModelError:
    return ModelError(f"{path} is truncated: it ends before its metadata or weights do. Copy or download it again.")


class _Cursor:
    """A place in a header, whose values are read in turn; ModelError at the end of the file."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._remaining = path.stat().st_size

    def unpack(self, format: str, count: int = 1) -> tuple[Any, ...]:  # noqa: A002
        """Return the next numbers, little-endian; `count` of a format of one letter."""
        size = count * struct.calcsize(f"<{format}")
        if size > self._remaining or len(data := self._file.read(size)) < size:
            raise _truncated(self._path)
        self._remaining -= size
        return struct.unpack(f"<{count}{format}", data)

    def string(self) -> str:
        """Return the next string."""
        (length,) = self.unpack("Q")
        (data,) = self.unpack("s", length)
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError:
            raise ModelError(f"{self._path} is damaged: its header has a string that is not UTF-8.") from None

    def value(self) -> Any:
        """Return the next value of metadata, after its type; float32 as the shortest decimal that stands for it."""
        (kind,) = self.unpack("I")
        of, count = self.unpack("IQ") if kind == _ARRAY else (kind, 1)
        if of == _STRING:
            values = [self.string() for _ in range(count)]
        elif of in _SCALARS:
            values = list(self.unpack(_SCALARS[of], count))
        else:
            raise ModelError(f"{self._path} is damaged: its metadata has a value of the unknown type {of}.")
        if kind == _ARRAY:
            return values
        return float(str(np.float32(values[0]))) if kind == _FLOAT32 else values[0]

    def settings(self, count: int) -> dict[str, Any]:
        """Return the next settings by name."""
        metadata: dict[str, Any] = {}
        for _ in range(count):
            key = self.string()
            if key in metadata:
                raise ModelError(f"{self._path} is damaged: it has the setting {key} twice.")
            metadata[key] = self.value()
        return metadata


def _tensor(cursor: _Cursor, path: Path) -> tuple[str, StoredTensor]:
    """Return the next tensor and its name, with its offset among all weights; ModelError if gguf cannot read it."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    name = cursor.string()
    (count,) = cursor.unpack("I")
    if not 1 <= count <= _MAX_DIMENSIONS:
        raise ModelError(f"{path} is damaged: the tensor {name} has {count} dimensions.")
    sizes = cursor.unpack("Q", count)
    number, offset = cursor.unpack("IQ")
    try:
        kind = GGMLQuantizationType(number)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        dequantize(np.zeros((1, block_bytes), dtype=np.uint8), kind)
    except ValueError:
        raise ModelError(f"{path}: the package gguf does not know {number}, the type of {name}.") from None
    except NotImplementedError:
        raise ModelError(f"{path}: the package gguf cannot dequantise {kind.name}, the type of {name}.") from None
    if not math.prod(sizes) or sizes[0] % block:
        raise ModelError(f"{path} is damaged: the tensor {name} has the shape {sizes}, which {kind.name} cannot have.")
    return name, StoredTensor(offset, tuple(reversed(sizes)), kind, sizes[0] // block * block_bytes)


class _Vocabulary:
    """The tokens of a file and their ids: those `added`, whether special, and the `scores` of those made by merges."""

    def __init__(self, file: GgufFile) -> None:
        from gguf import TokenType

        self.file = file
        tokens = self.get("tokens") or []
        self.tokens: list[str] = [token or f"[EMPTY_{number}]" for number, token in enumerate(tokens)]
        self.ids = {token: number for number, token in enumerate(self.tokens)}
        kinds = self.get("token_type", [TokenType.NORMAL] * len(tokens))
        scores = self.get("scores", [0.0] * len(tokens))
        if not tokens or not len(self.ids) == len(tokens) == len(kinds) == len(scores):
            raise ModelError(f"{file.path} is damaged: it has no tokens, one twice, or one without a kind or score.")
        is_special = {TokenType.UNKNOWN: True, TokenType.CONTROL: True, TokenType.USER_DEFINED: False}
        of_kind = [*zip(self.tokens, kinds, scores, strict=True)]
        self.added = {token: is_special[kind] for token, kind, _ in of_kind if kind in is_special}
        merged = (TokenType.NORMAL, TokenType.UNUSED)
        self.scores: dict[str, float] = {token: score for token, kind, score in of_kind if kind in merged}

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a setting of the tokenizer."""
        return self.file.get(f"tokenizer.ggml.{key}", default)

    def special(self, name: str, default: int | None = None) -> str | None:
        """Return the text of a special token, such as bos; None if there is none."""
        number = self.get(f"{name}_token_id", default)
        return self.tokens[number] if number is not None and 0 <= number < len(self.tokens) else None


def load_gguf_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Return the tokenizer in a GGUF file; ModelError naming a kind or setting that is not supported."""
    file = open_gguf(name)
    vocabulary = _Vocabulary(file)
    kind, splitting = vocabulary.get("model"), vocabulary.get("pre")
    is_sentencepiece = kind == "llama"
    if is_sentencepiece:
        backend, defaults = _sentencepiece(vocabulary), {"bos": 1, "eos": 2, "unknown": 0}
    elif kind != "gpt2":
        raise ModelError(f"{name} has a tokenizer of the kind {kind}, which is not supported: only gpt2 and llama are.")
    elif splitting not in _SPLITTING:
        raise ModelError(
            f"{name} splits text in the way {splitting} (tokenizer.ggml.pre), which is not supported: only "
            f"{', '.join(_SPLITTING)} are."
        )
    else:
        backend, defaults = _byte_level(vocabulary, splitting), {}
    backend.add_tokens(
        [AddedToken(token, special=special, normalized=False) for token, special in vocabulary.added.items()]
    )
    special = {key: vocabulary.special(key, defaults.get(key)) for key in ("bos", "eos", "padding", "unknown")}
    begins = vocabulary.get("add_bos_token", is_sentencepiece or splitting in _WHOLE_WORDS)
    ends = vocabulary.get("add_eos_token")
    if (begins and not special["bos"]) or (ends and not special["eos"]):
        raise ModelError(f"{name} is damaged: its tokenizer adds a BOS or EOS, and has none.")
    around = (special["bos"] if begins else None, special["eos"] if ends else None)
    template = " ".join(part for part in (around[0], "$A", around[1]) if part)
    backend.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(token, vocabulary.ids[token]) for token in dict.fromkeys(around) if token]
    )
    templates = _chat_template(file)
    if key := file.unused("tokenizer.", _NO_EFFECT):
        raise ModelError(f"{name} has the setting {key}, which is not supported.")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=special["bos"],
        eos_token=special["eos"],
        pad_token=special["padding"],
        unk_token=special["unknown"] if is_sentencepiece else None,
        clean_up_tokenization_spaces=False,
        chat_template=templates,
    )


def _byte_level(vocabulary: _Vocabulary, splitting: str) -> Tokenizer:
    """Return byte-level BPE, as GPT-2's. Qwen's normalises text, which llama.cpp leaves out."""
    merges = [tuple(merge.split(" ")) for merge in vocabulary.get("merges") or ()]
    if vocabulary.get("add_space_prefix"):
        raise ModelError(f"{vocabulary.file.path}: a space before the text is not supported with byte-level BPE.")
    backend = Tokenizer(models.BPE(vocabulary.ids, merges, ignore_merges=splitting in _WHOLE_WORDS))
    pattern = _SPLITTING[splitting]
    steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern in (_GPT_2, _DIGITS))]
    if pattern == _DIGITS:
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    elif pattern != _GPT_2:
        steps.insert(0, pre_tokenizers.Split(Regex(pattern), "isolated"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    if pattern == _QWEN_2:
        backend.normalizer = normalizers.NFC()
    return backend


def _sentencepiece(vocabulary: _Vocabulary) -> Tokenizer:
    """Return SentencePiece's BPE with bytes for what is not in the vocabulary, as LLaMA's and Gemma's."""
    if missing := [token for token in (f"<0x{byte:02X}>" for byte in range(256)) if token not in vocabulary.ids]:
        raise ModelError(f"{vocabulary.file.path}: a vocabulary without bytes is not supported; it lacks {missing[0]}.")
    unknown = vocabulary.special("unknown", 0)
    # the ways to make a token of two others, best scores first
    merges = generate_merges(vocabulary.scores, vocabulary.scores)
    backend = Tokenizer(models.BPE(vocabulary.ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", _SPACE)
    decoding = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.get("add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        decoding.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = spaces
    backend.decoder = decoders.Sequence(decoding)
    return backend


def _chat_template(file: GgufFile) -> str | dict[str, str] | None:
    """Return the chat template, or several by name."""
    prefix = f"{_TEMPLATE}."
    named = {key.removeprefix(prefix): file.get(key) for key in file.metadata if key.startswith(prefix)}
    default: str | None = file.get(_TEMPLATE)
    return {**({"default": default} if default else {}), **named} if named else default
